"""What functions on arrays are given: the kinds of their arguments, each with what is wrong with it.

Good arguments are things that a machine's sides have, by these names; what is wrong is one of them with something
changed. What is known when a call is drawn is that machine: how long a sequence may be, and how many pages there are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cache import Numbers, ints
from .datum import Holder, Ref
from .kinds import FLAG, wrong
from .method import Given, Kind, Method
from .source import Source

__all__ = ["ATTENDED", "LATENT", "OPTIONS", "WRITTEN", "Changed", "viewed"]


@dataclass(frozen=True)
class Changed:
    """An array that a side has, with something about it changed.

    Attributes:
        of: the array.
        how: ``short`` without its last row, ``first`` its first row alone, ``heads`` without its last heads, ``listed``
            as a list, ``bits`` its bits as int32, ``put`` with one number changed, or the type that it is cast to.
        place: the place of the number that is changed.
        value: the number there.
    """

    of: Ref
    how: str
    place: tuple[int, ...] = ()
    value: int = 0

    def made_on(self, holder: Holder) -> Any:
        """What a side is given."""
        return _CHANGES.get(self.how, _cast)(np.asarray(holder.thing(self.of)), self)

    def __repr__(self) -> str:
        if self.how == "put":
            return f"<{self.of} with {self.value} at {list(self.place)}>"
        return f"<{self.of}, {self.how}>"


def _put(array: Any, asked: Changed) -> Any:
    changed = array.copy()
    changed[asked.place] = asked.value
    return changed


def _cast(array: Any, asked: Changed) -> Any:
    with np.errstate(invalid="ignore"):  # a number that is not finite becomes some int
        return array.astype(asked.how)


_CHANGES: Mapping[str, Callable[[Any, Changed], Any]] = {
    "short": lambda array, _: array[:-1],
    "first": lambda array, _: array[0],
    "heads": lambda array, _: array[:, :-1],
    "listed": lambda array, _: array.tolist(),
    "bits": lambda array, _: array.view(np.int32),
    "put": _put,
}


def _array(name: str, *changes: str, values: Callable[[Any], list[dict[str, Any]]] | None = None) -> Kind:
    """An array.

    Args:
        name: its name.
        changes: what is wrong with it, see `Changed`.
        values: the calls with a wrong number in it, which are refused where numbers are checked.
    """

    def spoil(source: Source, known: Any, _: Given) -> Any:
        numbers = values(known) if values is not None and known.checks_numbers else []
        return source.one_of([*(Changed(Ref(name), change) for change in changes), *numbers])

    return Kind("array", fault=spoil)


def _with(name: str, *puts: tuple[tuple[int, ...], int]) -> list[dict[str, Any]]:
    """Calls that check the numbers of an array with one changed."""
    return [{name: Changed(Ref(name), "put", place, value), "validate": True} for place, value in puts]


_FAR = 2**31 - 1


def _lengths(known: Any) -> list[dict[str, Any]]:
    """Sequences longer than their tables or shorter than their query tokens, of which the second has two."""
    return _with("kv_lens", *(((1,), value) for value in (-1, 1, known.most_keys + 1, _FAR)))


def _starts(known: Any) -> list[dict[str, Any]]:
    """Starts that fall, that do not begin at 0, or that lie past the query tokens."""
    falling = (((1,), value) for value in (-1, 4, _FAR))
    return _with("cu_q_lens", *falling, ((0,), 1), ((2,), known.num_tokens + 1))


def _pages(known: Any) -> list[dict[str, Any]]:
    """Pages of a sequence that do not exist: neither cut off nor wrapped round."""
    numbers = (-1, known.num_pages, _FAR, 65536 + 1)
    return _with("page_table", *((place, value) for place in ((0, 0), (1, 1)) for value in numbers))


def _counts(known: Any) -> list[dict[str, Any]]:
    """More sequences than rows, or fewer than none."""
    return _with("num_seqs", *(((0,), value) for value in (-1, known.num_rows + 1)))


def _floats(name: str, *more: str) -> Kind:
    return _array(name, "int32", "first", "listed", *more)


_BATCH = {
    "kv_lens": _array("kv_lens", "int64", "short", "listed", values=_lengths),
    "page_table": _array("page_table", "int64", "short", "first", values=_pages),
    "cu_q_lens": _array("cu_q_lens", "int64", "short", values=_starts),
    "num_seqs": _array("num_seqs", "int64", "listed", values=_counts),
}
"""A batch of sequences; lengths of 64 bits would be cut to 32 by the device."""


def _sinks(source: Source, known: Any, _: Given) -> Numbers:
    return source.one_of([Numbers(0, (3,)), Numbers(0, (known.query_heads,), dtype="int32")])


_EXTENT = wrong(0, -1, True, 1.0)
_FACTOR = wrong(0.0, -1.0, "1")

OPTIONS: Mapping[str, Kind] = {
    "scale": wrong("1"),
    "causal": FLAG,
    "window": _EXTENT,
    "chunk": _EXTENT,
    "soft_cap": _FACTOR,
    "sinks": Kind("array", fault=_sinks),
    "q_scale": _FACTOR,
    "k_scale": _FACTOR,
    "v_scale": _FACTOR,
    "num_kv_heads": wrong(0, 3, True),
    "v_head_dim": wrong(0, -1, 1.0),
    "kv_dtype": wrong("bfloat16"),
    "version": wrong("v1", 3),
    "decode_block": wrong(0, 100, True, "128"),
    "prefill_block": wrong(0, (16,), (0, 0)),
    "validate": FLAG,
}
"""The options of attention, each with values that mean nothing."""

ATTENDED: Mapping[str, Kind] = {
    "queries": _floats("queries", "heads"),
    "kv_pages": _array("kv_pages", "first", "bits"),
    **_BATCH,
}
WRITTEN: Mapping[str, Kind] = {
    "queries": ATTENDED["queries"],
    "keys": _floats("keys", "heads", "short"),
    "values": _floats("values", "heads", "short"),
    "kv_pages": ATTENDED["kv_pages"],
    **_BATCH,
}
LATENT: Mapping[str, Kind] = {
    "queries": ATTENDED["queries"],
    "rotary_queries": _floats("rotary_queries", "heads", "short"),
    "latent_pages": _array("latent_pages", "first", "bits"),
    **_BATCH,
}


_SCALE, _STEP = wrong(0.0, -1.0, "1"), wrong(None, 1)
_IDS = wrong(1, [1.5], ["1"], [2**31], [[1]], ints([1]))
_BEGUN = {
    "mesh": wrong(1),
    "metadata": wrong(None, 1),
    "layer_index": wrong(-1, 1, True, 0.0, None),
    "partition_manager": wrong(None, 1),
    "quantizer": wrong(1, "int8"),
}
_BEGUN_WITH = {
    "mesh": None,
    "metadata": Ref("view", (".metadata",)),
    "layer_index": 0,
    "partition_manager": Ref("rules"),
}
_NEW = {name: _floats(name, "heads", "short") for name in ("key", "value")}
_QUERIES = _floats("queries")

_VIEWED: Mapping[str, tuple[Mapping[str, Kind], Mapping[str, Kind]]] = {
    "init": (_BEGUN, {}),
    "concatenate_to_cache": ({**_NEW, "cache_metadata": _STEP}, {"k_scale": _SCALE, "v_scale": _SCALE}),
    "attend": ({"queries": _QUERIES, "cache_metadata": _STEP}, {"sinks": wrong(1), "validate": FLAG}),
    "update_and_attend": (
        {"queries": _QUERIES, **_NEW, "cache_metadata": _STEP},
        {"sinks": wrong(1), "validate": FLAG},
    ),
    "init_cache": ({name: kind for name, kind in _BEGUN.items() if name != "layer_index"}, {}),
    "copy_pages": ({"sources": _IDS, "destinations": _IDS, "num_slots": _IDS}, {}),
    "export_pages": ({"page_ids": _IDS, "num_slots": _IDS}, {}),
    "import_pages": ({"page_ids": _IDS, "block": wrong(None, 1, [], [1])}, {}),
}
"""The arguments of each method of a view and of a cache, and its options."""

_GOOD = {
    **_BEGUN_WITH,
    **{name: Ref(name) for name in ("key", "value", "queries")},
    "cache_metadata": Ref("step"),
    "sources": [1],
    "destinations": [2],
    "page_ids": [1],
    "num_slots": [1],
    "block": Ref("block"),
}


def viewed(name: str, clause: str, **more: Any) -> Method:
    """A method of a view or of a cache."""
    arguments, options = _VIEWED[name]
    return Method(
        *(name, arguments, Kind("array"), clause),
        by_name=tuple(options),
        options=options,
        draw=lambda *_: {argument: _GOOD[argument] for argument in arguments if argument in _GOOD},
        spoils=1,
        logged=False,
        **more,
    )
