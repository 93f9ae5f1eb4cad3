"""Faults of kernels: copies that nobody waits for, buffers that are filled while they are read, lost bits."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .device_patching import Edit, with_tpu_kernels
from .registry import OWN, seeded

__all__: list[str] = []


def _nothing(*_: Any) -> None:
    """A wait that is forgotten."""


@seeded(52, "ATT-6", "kernels", also=("ATT-1",), setups=("interpreted",))
def pages_not_waited_for(fast: ModuleType) -> SimpleNamespace:
    """Pages are read while they are being copied: the wait for the copies is missing."""
    return with_tpu_kernels(fast, {"tpu.prefill_kernel:wait_for_pages": lambda _: _nothing})


@seeded(52, "ATT-6", "kernels", also=("ATT-1",), setups=("interpreted",))
def output_overwritten_too_early(fast: ModuleType) -> SimpleNamespace:
    """A buffer of results is filled again while its last contents are being copied away."""
    return with_tpu_kernels(fast, {"tpu.prefill_kernel:wait_for_output": lambda _: _nothing})


@seeded(50, "ATT-3", "kernels", also=("ATT-1", "ATT-2", "ATT-6"), setups=("interpreted, half",))
def pages_that_are_missing_are_copied(fast: ModuleType) -> SimpleNamespace:
    """A decode kernel copies from whatever page id stands in the table, -1 too: from in front of the cache (ours)."""

    def edit(attention: ModuleType) -> Any:
        missing = attention.misses_pages
        return lambda *arguments: missing(*arguments) & False

    return with_tpu_kernels(fast, {"tpu.attention:misses_pages": edit})


@seeded(OWN, "ATT-6", "kernels", setups=("interpreted",))
def scores_rounded_far_from_zero(fast: ModuleType) -> SimpleNamespace:
    """Scale and log2(e) are multiplied into the scores before the largest is taken off them: ours, once."""
    fold = "tpu.prefill_fold"

    def multiplied(module: ModuleType) -> Any:
        scores_of, unit = module.scores_of, module.exponent_unit
        return lambda products, scoring: scores_of(products, scoring) * unit(scoring)

    edits: dict[str, Edit] = {f"{fold}:scores_of": multiplied, f"{fold}:exponent_unit": lambda _: lambda _: 1.0}
    return with_tpu_kernels(fast, edits)


@seeded(52, "CACHE-3", "kernels", setups=("interpreted",))
def rows_not_waited_for(fast: ModuleType) -> SimpleNamespace:
    """A kernel that copies tokens into their slots ends before its copies do."""
    return with_tpu_kernels(fast, {"tpu.in_flight:wait": lambda _: _nothing})
