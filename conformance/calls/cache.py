"""The table of the functions on the arrays of a cache: updates by slots and by slices, copies of pages, states.

What is known when a call is drawn is a machine's (`kvproof.conformance.machines.cache`): the ``layout`` of the
cache that both sides have as ``pages``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .datum import Ref, Spelled
from .kinds import wrong
from .method import Given, Kind, Method, Table
from .source import Source
from .spelling import Spelling
from .values import signed

__all__ = ["CACHES", "COPIES", "TOKENS", "Numbers", "ints", "tokens_of"]

TOKENS = 6
"""Rows of the keys and values of every update."""

COPIES = 3
"""Pages of every copy."""

_SLICES = 4

_CONTENTS = {
    "normal": (1.0,) * TOKENS,
    "small": (2.0**-6,) * TOKENS,
    "large": (3000.0,) * TOKENS,
    "mixed": (1.0, 1000.0, 2.0**-6, 0.0, 30.0, 1.0),
    "zeros": (0.0,) * TOKENS,
    "infinite": (1.0, inf, 2.0**-6, 1000.0, -inf, 1.0),
    "tiny": (2.0**-120, 1.0, 2.0**-123, 2.0**-125, 2.0**-6, 0.0),
}
"""What the rows of keys and values are multiplied by."""


@dataclass(frozen=True)
class Numbers:
    """Rows of numbers of both signs: the same for the same seed.

    Attributes:
        seed: the seed by which they are drawn.
        shape: their shape, rows first.
        times: what each row is multiplied by; NaN for one that no call may read.
        columns: the first and the end of the columns that are handed over, of the only head; None for all of it.
        dtype: their type.
    """

    seed: int
    shape: tuple[int, ...]
    times: tuple[float, ...] = _CONTENTS["normal"]
    columns: tuple[int, int] | None = None
    dtype: str = "float32"

    @property
    def array(self) -> NDArray[Any]:
        """The numbers."""
        made = signed(self.seed, self.shape)
        made = made * np.array(self.times[: len(made)], np.float32).reshape(-1, *[1] * (made.ndim - 1))
        return (made if self.columns is None else made[:, 0, slice(*self.columns)]).astype(self.dtype)

    def made_on(self, _: Any) -> NDArray[Any]:
        """What a side is given."""
        return self.array

    def __repr__(self) -> str:
        times = dict(zip(_CONTENTS.values(), _CONTENTS, strict=True)).get(self.times, list(self.times))
        columns = "" if self.columns is None else f", columns {self.columns[0]} to {self.columns[1]}"
        return f"<{times} {self.dtype}{list(self.shape)} of seed {self.seed}{columns}>"

    def simpler(self) -> Iterator["Numbers"]:
        """The same with seed 0, and all rows that are read as they were drawn."""
        if self.seed:
            yield replace(self, seed=0)
        if any(factor != 1.0 and not isnan(factor) for factor in self.times):
            yield replace(self, times=tuple(factor if isnan(factor) else 1.0 for factor in self.times))


def ints(*values: Any, how: Spelling = Spelling.INT32) -> Spelled:
    """An array of ints."""
    return Spelled(how, values)


_PADDING = ((-1, -1, -1), (0, 0, 1), (2**31 - 1,) * 3)
"""What columns past the number of slices hold: one of them would write, were it a slice."""


def _columns(columns: Sequence[Sequence[int]], count: int, padding: Sequence[int] = (0, 0, 0)) -> Spelled:
    """Slices as an array `[3, count]`, padded behind their number."""
    padded = [*columns, *[padding] * (count - len(columns))]
    return ints(*(list(row) for row in zip(*padded, strict=True)))


# -- Updates -----------------------------------------------------------------------------------------------------------


def tokens_of(layout: Any, seed: int, times: Sequence[float] = _CONTENTS["normal"]) -> dict[str, Numbers]:
    """The keys and values of a step; of latents the parts of the keys."""
    of_keys, of_values = layout.dims
    keys = Numbers(seed, (TOKENS, layout.heads, of_keys), tuple(times))
    if layout.update == "mla_cache_update":
        return {"latents": replace(keys, columns=(0, of_values)), "rotary": replace(keys, columns=(of_values, of_keys))}
    return {"keys": keys, "values": replace(keys, seed=seed + 1, shape=(TOKENS, layout.heads, of_values))}


def _by_slots(source: Source, layout: Any, times: Sequence[float]) -> tuple[Given, Sequence[float]]:
    """Slots anywhere; padding tokens hold NaN and write nothing."""
    slots = source.some(range(layout.num_slots), TOKENS)
    places = source.some(range(TOKENS), len(slots), len(slots))
    mapping = [source.one_of([-1, layout.num_slots, -(2**31), 2**31 - 1])] * TOKENS
    for place, slot in zip(places, slots, strict=True):
        mapping[place] = slot
    poisoned = [factor if place in places else nan for place, factor in enumerate(times)]
    return {"slot_mapping": ints(*mapping)}, poisoned


def _by_slices(source: Source, layout: Any, times: Sequence[float]) -> tuple[Given, Sequence[float]]:
    """Runs of tokens, each into one page; columns past their number hold anything."""
    size, columns = layout.page_size, []
    for page in source.some(range(layout.num_pages), _SLICES):
        first = source.integer(0, size - 1)
        length = source.integer(1, min(size - first, TOKENS))
        columns.append((page * size + first, source.integer(0, TOKENS - length), length))
    slices = _columns(columns, _SLICES, source.one_of(_PADDING))
    return {"slot_mapping": slices, "num_slices": ints(len(columns))}, times


def _update(pages: str) -> Any:
    def draw(source: Source, known: Any) -> Given:
        layout, content = known.layout, _CONTENTS[source.one_of(list(_CONTENTS))]
        where, times = (_by_slots if source.integer(0, 6) < 4 else _by_slices)(source, layout, content)
        return {pages: Ref("pages"), **tokens_of(layout, source.integer(0, 99), times), **where, **layout.options}

    return draw


def _mapping(*slots: int) -> Spelled:
    return ints(*slots, *[-1] * (TOKENS - len(slots)))


def _slices(*columns: tuple[int, int, int]) -> Given:
    return {"slot_mapping": _columns(columns, len(columns)), "num_slices": ints(len(columns)), "validate": True}


def _named_badly(source: Source, known: Any, given: Given) -> Any:
    """Slots named twice, slots that do not exist, slices that leave their page, arrays of wrong types and shapes."""
    size, num_slots = known.layout.page_size, known.layout.num_slots
    return source.one_of(
        [
            replace(given["slot_mapping"], how=Spelling.INT64),
            ints(0, *[-1] * (TOKENS - 2)),
            {"slot_mapping": _mapping(0, num_slots), "validate": True},
            {"slot_mapping": _mapping(1, 0, 1), "validate": True},
            [0] * TOKENS,
            _slices((size - 1, 0, 2)),
            _slices((0, 0, 0)),
            _slices((0, 0, 1), (0, 1, 1)),
            _slices((num_slots, 0, 1)),
            _slices((0, TOKENS, 1)),
        ]
    )


def _numbered_badly(source: Source, *_: Any) -> Given:
    return source.one_of(
        [
            {"slot_mapping": _columns([(0, 0, 0)], 2), "num_slices": ints(1, how=Spelling.INT64)},
            {"slot_mapping": ints([0, 0], [0, 0]), "num_slices": ints(1)},
            {"slot_mapping": _columns([(0, 0, 0)], 1), "num_slices": ints(2), "validate": True},
        ]
    )


def _keys_badly(source: Source, _: Any, given: Given) -> Any:
    keys, values = given["keys"], given["values"]
    rows, heads, columns = keys.shape
    return source.one_of(
        [
            replace(keys, shape=(rows - 1, heads, columns)),
            replace(keys, columns=(0, columns)),
            replace(keys, dtype="int32", times=_CONTENTS["normal"]),
            {"keys": replace(keys, shape=(rows, heads, 300)), "values": replace(values, shape=(rows, heads, 300))},
        ]
    )


def _values_badly(_: Source, __: Any, given: Given) -> Any:
    rows, heads, columns = given["values"].shape
    return replace(given["values"], shape=(rows, 2 * heads, columns))


_TYPE = Kind(fault=lambda source, known, _: source.one_of(["float64", *([None] if known.layout.as_bits else [])]))

# -- Pages -------------------------------------------------------------------------------------------------------------


def _copied(source: Source, known: Any) -> Given:
    """Pairs of pages, or of some of their slots; those that name no page do nothing."""
    count = known.layout.num_pages
    pages = source.some(range(count), 2 * COPIES)
    pairs = list(zip(pages[0::2], pages[1::2], strict=False))
    nothing = [(-1, 0), (0, -1), (count, 1), (1, count), (-1, -1)]
    pairs += [source.one_of(nothing) for _ in range(COPIES - len(pairs))]
    sources, destinations = (ints(*part) for part in zip(*pairs, strict=True))
    given = {"pages": Ref("pages"), "sources": sources, "destinations": destinations}
    if known.backend.names.accepts("copy_pages", "num_slots") and source.integer(0, 1):
        given |= {"num_slots": _slots(source, known.layout.page_size), **_columns_named(known.layout)}
    return given


def _columns_named(layout: Any) -> Given:
    """The layout's name, where a call cannot know without it which axis are slots."""
    return {"version": layout.version} if layout.slots_last else {}


def _slots(source: Source, size: int) -> Spelled:
    """How many of the first slots of some pages are meant: any number, also none and more than there are."""
    return ints(*(source.one_of([size, *range(size + 1), -1, size + 1]) for _ in range(COPIES)))


def _of_slots(_: Any, given: Given) -> str:
    return "MAN-17" if "num_slots" in given else "MAN-13"


def _exported(source: Source, known: Any) -> Given:
    """Pages, and what are none, with any number of live slots."""
    count, size = known.layout.num_pages, known.layout.page_size
    ids = [source.integer(-1, count) for _ in range(COPIES)]
    return {
        "pages": Ref("pages"),
        "page_ids": ints(*ids),
        "num_slots": _slots(source, size),
        **_columns_named(known.layout),
    }


def _read(*_: Any) -> Given:
    return {"pages": Ref("pages"), "page_ids": ints(0)}


def _put_back(_: Source, known: Any) -> Given:
    """A page is written onto itself."""
    return {"pages": Ref("pages"), "page_ids": ints(*range(known.layout.num_pages)), "states": Ref("pages")}


# -- The table ---------------------------------------------------------------------------------------------------------


def _shapes(pages: Any, side: Any) -> object:
    """A result that is held against its arguments: at first the shapes and types of its parts."""
    parts = tuple(pages) if side.scaled else (pages,)
    return [(tuple(part.shape), str(part.dtype)) for part in parts]


_PAGES = Kind("array", plain=_shapes)
_OPTIONS = {"num_slices": Kind(fault=_numbered_badly), "kv_dtype": _TYPE}
_SCALES = {"k_scale": wrong(0.0, True), "v_scale": wrong(-1.0)}
_STORED = ("CACHE-2", "CACHE-4")


def _writes(function: str, arguments: dict[str, Kind], options: dict[str, Kind]) -> Method:
    return Method(
        function,
        arguments | options,
        _PAGES,
        "CACHE-3",
        refuses=_STORED,
        when=lambda known: known.layout.update == function,
        draw=_update(next(iter(arguments))),
        weight=7,
        spoils=1,
        by_name=tuple(options),
        logged=False,
    )


def _moves(name: str, arguments: Mapping[str, Kind], clause: str, **more: Any) -> Method:
    return Method(name, arguments, _PAGES, clause, optional=True, logged=False, spoils=1, **more)


_CHECKED = {"validate": wrong(1)}
_NO_PAGES, _NO_VERSION = wrong(1, "pages"), wrong("v1", 3)


def _of_tokens(name: str) -> Kind:
    """Rows of a step's tokens: one too few, of another type, or with an axis too many."""

    def spoil(source: Source, _: Any, given: Given) -> Any:
        rows: Numbers = given[name]
        fewer = replace(rows, shape=(rows.shape[0] - 1, *rows.shape[1:]))
        return source.one_of(
            [fewer, replace(rows, dtype="int32", times=_CONTENTS["normal"]), replace(rows, columns=None)]
        )

    return Kind(fault=spoil)


def _of_pages(name: str) -> Kind:
    """An entry for each page: of a wrong type, one too few, or no array."""

    def spoil(source: Source, _: Any, given: Given) -> Any:
        good: Spelled = given[name]
        return source.one_of([replace(good, how=Spelling.INT64), replace(good, values=good.values[:-1]), 1])

    return Kind(fault=spoil)


CACHES = Table(
    "caches",
    "",
    (
        _writes(
            "kv_cache_update",
            {
                "kv_pages": _NO_PAGES,
                "keys": Kind(fault=_keys_badly),
                "values": Kind(fault=_values_badly),
                "slot_mapping": Kind(fault=_named_badly),
            },
            _OPTIONS | _SCALES | {"version": _NO_VERSION} | _CHECKED,
        ),
        _writes(
            "mla_cache_update",
            {
                "latent_pages": _NO_PAGES,
                "latents": _of_tokens("latents"),
                "rotary": _of_tokens("rotary"),
                "slot_mapping": Kind(fault=_named_badly),
            },
            {"num_slices": Kind(fault=_numbered_badly), "kv_dtype": _TYPE, **_CHECKED},
        ),
        _moves(
            "copy_pages",
            {
                "pages": _NO_PAGES,
                "sources": _of_pages("sources"),
                "destinations": _of_pages("destinations"),
                "num_slots": wrong(1, ints(1)),
                "version": _NO_VERSION,
            },
            "MAN-13",
            where=_of_slots,
            refuses=("MAN-17",),
            by_name=("num_slots", "version", "validate"),
            options=_CHECKED,
            draw=_copied,
            weight=1,
        ),
        _moves(
            "export_pages",
            {
                "pages": _NO_PAGES,
                "page_ids": _of_pages("page_ids"),
                "num_slots": _of_pages("num_slots"),
                "version": _NO_VERSION,
            },
            "SWAP-2",
            by_name=("version",),
            draw=_exported,
        ),
        _moves(
            "read_states", {"pages": _NO_PAGES, "page_ids": wrong(1, ints(0, how=Spelling.INT64))}, "MAN-13", draw=_read
        ),
        _moves(
            "write_states",
            {"pages": _NO_PAGES, "page_ids": wrong(1, ints(0, how=Spelling.INT64)), "states": _NO_PAGES},
            "SWAP-2",
            by_name=("validate",),
            options=_CHECKED,
            draw=_put_back,
        ),
    ),
)
