"""Attention with one fault each: both sides refuse it, instead of reading what is not meant."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..calls.deviation import SpecificationError
from .base import Nothing
from .cache_base import CacheMachine
from .draws import Drawing
from .operations import operation
from .properties import step
from .ragged import SETUPS, Batch

__all__ = ["AttentionFaults"]

_STRIDE = 7
"""A step makes every seventh of the calls with a fault: each fault alone is one of some fifty."""

_NAMES = ("queries", "kv_pages", "kv_lens", "page_table", "cu_q_lens", "num_seqs")


class AttentionFaults(CacheMachine):
    """The steps of the attention machine that must be refused.

    Attributes:
        simplest: the simplest setup that the backend takes; "" if it takes none of the simple ones.
    """

    simplest = "plain"

    @step(when=lambda self: self.simplest)
    def misuse(self, data: Drawing) -> None:
        """Wrong types, shapes and options; lengths, starts and page ids that are impossible, where they are checked."""
        first = data.draw(st.integers(0, _STRIDE - 1))
        for number in range(first, len(self.faults()), _STRIDE):
            self.misuse_once(number)

    @operation
    def misuse_once(self, number: int) -> None:
        """One of the calls with a fault."""
        faults = self.faults()
        if number >= len(faults):
            raise Nothing
        batch = self.right_batch()
        arguments = dict(zip(_NAMES, batch.arguments(), strict=True)) | faults[number]
        shown = ", ".join(f"{name}={_told(value)}" for name, value in faults[number].items())
        given = [arguments.pop(name) for name in _NAMES]
        tried = self.call(
            f"ragged_paged_attention(..., {shown})  # of {batch}",
            lambda side: side.names.get("ragged_paged_attention")(*given, **arguments),
            "R1",
        )
        if not tried.refused:
            raise SpecificationError(f"the specification is wrong: {self.calls[-1]} was not refused")

    def right_batch(self) -> Batch:
        """The batch that faults are put into."""
        return Batch(self.simplest, (1, 2), (3, 5), ((1,), (2, 3)), (0, 0))

    def faults(self) -> list[dict[str, Any]]:
        """Every fault, as the arguments and options that are wrong, of those that the backend's function knows."""
        good = dict(zip(_NAMES, self.right_batch().arguments(), strict=True))
        faults = [*self.of_types(good), *self.of_options(), *self.of_lengths(good), *self.of_pages(good)]
        takes = self.backend.names.accepts
        return [f for f in faults if all(name in good or takes("ragged_paged_attention", name) for name in f)]

    def of_types(self, good: dict[str, Any]) -> list[dict[str, Any]]:
        """Arrays of wrong types and shapes; lengths of 64 bits would be cut to 32 by the device."""
        layout, queries = SETUPS[self.simplest].layout, good["queries"]
        return [
            *({name: good[name].astype(np.int64)} for name in _NAMES[2:]),
            *({name: good[name][:-1]} for name in ("kv_lens", "cu_q_lens", "page_table")),
            *({name: good[name].tolist()} for name in ("kv_lens", "queries")),
            {"num_seqs": 1},
            {"queries": np.zeros(queries.shape, np.int32)},
            {"queries": queries[:, :3]},
            {"queries": queries[:, :, 0]},
            {"queries": np.zeros((*queries.shape[:2], 300), np.float32)},
            {"kv_pages": good["kv_pages"][0]},
            {"kv_pages": good["kv_pages"].view(np.int32)},
            {"page_table": good["page_table"][0]},
            {"sinks": np.zeros(3, np.float32)},
            {"sinks": np.zeros(2 * layout.heads, np.int32)},
        ]

    def of_options(self) -> list[dict[str, Any]]:
        """Options that mean nothing."""
        return [
            *({name: value} for name in ("window", "chunk") for value in (0, -1, True, 1.0)),
            *({name: value} for name in ("soft_cap", "q_scale", "k_scale", "v_scale") for value in (0.0, -1.0, "1")),
            *({"num_kv_heads": value} for value in (0, 3, True)),
            *({"v_head_dim": value} for value in (0, -1, 1.0)),
            {"scale": "1"},
            {"causal": 1},
            {"validate": 1},
            {"kv_dtype": "bfloat16"},
        ]

    def of_lengths(self, good: dict[str, Any]) -> list[dict[str, Any]]:
        """Lengths and starts that contradict each other."""
        most = SETUPS[self.simplest].most_keys
        rows, starts = good["kv_lens"], good["cu_q_lens"]
        faults = [
            *({"kv_lens": _with(rows, 1, value)} for value in (-1, 1, most + 1, 2**31 - 1)),
            *({"cu_q_lens": _with(starts, 1, value)} for value in (-1, 4, 2**31 - 1)),
            {"cu_q_lens": _with(starts, 0, 1)},
            {"cu_q_lens": _with(starts, 2, len(good["queries"]) + 1)},
            *({"num_seqs": np.array([value], np.int32)} for value in (-1, len(rows) + 1)),
        ]
        return [fault | {"validate": True} for fault in faults]

    def of_pages(self, good: dict[str, Any]) -> list[dict[str, Any]]:
        """Pages of a sequence that do not exist: neither cut off nor wrapped round."""
        count, table = SETUPS[self.simplest].layout.num_pages, good["page_table"]
        return [
            {"page_table": _with(table, place, value), "validate": True}
            for place in ((0, 0), (1, 1))
            for value in (-1, count, 2**31 - 1, 65536 + 1)
        ]


def _with(array: Any, place: Any, value: int) -> Any:
    """An array with one entry changed."""
    changed = array.copy()
    changed[place] = value
    return changed


def _told(value: Any) -> str:
    """An argument as a report shows it."""
    if isinstance(value, np.ndarray) and value.size > 32:
        return f"{value.dtype}{list(value.shape)}"
    return " ".join(repr(value).split())
