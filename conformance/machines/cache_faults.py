"""Updates with one fault each: both sides refuse them, before anything is written."""

from typing import Any

import numpy as np

from ..deviation import SpecificationError
from ..properties import step
from .arrays import signed
from .cache_base import TOKENS, CacheMachine
from .draws import Drawing, one_of

__all__ = ["CacheFaults"]


class CacheFaults(CacheMachine):
    """The steps of the cache machine that must be refused."""

    @step(when=lambda self: self.layout.update == "kv_cache_update", weight=2)
    def misuse(self, data: Drawing) -> None:
        """Wrong types and shapes, slots named twice, slices that leave their page, slots that do not exist."""
        of_keys, of_values = self.layout.dims
        heads, num_slots, size = self.layout.heads, self.layout.num_slots, self.layout.page_size
        good: dict[str, Any] = {
            "keys": signed(1, (TOKENS, heads, of_keys)),
            "values": signed(2, (TOKENS, heads, of_values)),
            "slot_mapping": np.full(TOKENS, -1, np.int32),
            **self.layout.options,
        }

        def slots(*given: int) -> Any:
            return np.array([*given, *[-1] * (TOKENS - len(given))], np.int32)

        def slices(*column: int) -> dict[str, Any]:
            named = np.array(column, np.int32).reshape(-1, 3).T
            return {"slot_mapping": named, "num_slices": np.array([named.shape[1]], np.int32), "validate": True}

        faults: list[dict[str, Any]] = [
            {"slot_mapping": slots(0, 1).astype(np.int64)},
            {"slot_mapping": slots(0)[:-1]},
            {"slot_mapping": slots(0, num_slots), "validate": True},
            {"slot_mapping": slots(1, 0, 1), "validate": True},
            {"slot_mapping": [0] * TOKENS},
            {"keys": good["keys"][:-1]},
            {"keys": good["keys"][:, 0]},
            {"keys": good["keys"].astype(np.int32)},
            {"values": np.concatenate([good["values"]] * 2, axis=1)},
            {"keys": signed(1, (TOKENS, heads, 300)), "values": signed(2, (TOKENS, heads, 300))},
            {"k_scale": 0.0},
            {"v_scale": -1.0},
            {"k_scale": True},
            {"validate": 1},
            {"kv_dtype": "float64"},
            {"num_slices": np.array([1], np.int64), "slot_mapping": np.zeros((3, 2), np.int32)},
            {"num_slices": np.array([1], np.int32), "slot_mapping": np.zeros((2, 2), np.int32)},
            slices(size - 1, 0, 2),
            slices(0, 0, 0),
            slices(0, 0, 1, 0, 1, 1),
            slices(num_slots, 0, 1),
            slices(0, TOKENS, 1),
            {"num_slices": np.array([2], np.int32), "slot_mapping": np.zeros((3, 1), np.int32), "validate": True},
        ]
        if self.layout.as_bits:
            faults.append({"kv_dtype": None})
        fault = one_of(data, faults)
        self.refused("kv_cache_update", good | fault, fault)

    def refused(self, name: str, given: dict[str, Any], fault: dict[str, Any]) -> None:
        """Makes a call that both sides must refuse."""
        positional = [given.pop(word) for word in ("keys", "values", "slot_mapping")]
        shown = ", ".join(f"{word}={_told(value)}" for word, value in fault.items())
        tried = self.call(
            f"{name}(pages, ..., {shown})", lambda side: side.names.get(name)(side.pages, *positional, **given), "R1"
        )
        if not tried.refused:
            raise SpecificationError(f"the specification is wrong: {self.calls[-1]} was not refused")


def _told(value: Any) -> str:
    """An argument as a report shows it."""
    if isinstance(value, np.ndarray) and value.size > 3 * TOKENS:
        return f"{value.dtype}{list(value.shape)}"
    return " ".join(repr(value).split())
