"""Ragged batches for attention: a few setups, each compiled once, and how batches are drawn for them.

A batch is told in a line, from which its arrays are made again: ``Batch(...).arguments()``.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb, frexp
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..calls.values import signed
from .arrays import FINE_BITS, Array, poisoned
from .draws import Drawing
from .layouts import LatentLayout, Layout

__all__ = [
    *("BASES", "COMMON", "GPU_INTERPRETED", "INTERPRETED", "LATENT", "LIMITS"),
    *("MASKS", "NARROW", "OPTIONS", "SETUPS", "WIDE_WINDOW", "Batch", "Setup"),
    *("IN_PAGES", "draw_batch", "name_with", "shared_out"),
]


NULL = 0
"""The null page: what tables name where a page is released."""

_FAR = 2**31 - 1


@dataclass(frozen=True)
class Setup:
    """What a program is compiled for.

    Attributes:
        layout: the cache.
        group: query heads for each KV head.
        queries: the type of queries and results.
        row: entries of a table row.
        num_seqs: rows of the table.
        num_tokens: rows of the queries.
        options: keywords of the attention.
        sinks: whether each head has a sink.
        tall: at which position sequences begin to be drawn; their first pages are one page many times.
        first_page: the smallest page id that sequences hold.
        prompts: numbers of query tokens that sequences have beside a few.
    """

    layout: Layout
    group: int = 2
    queries: str = "float32"
    row: int = 6
    num_seqs: int = 4
    num_tokens: int = 12
    options: Mapping[str, Any] = field(default_factory=dict)
    sinks: bool = False
    tall: int = 0
    first_page: int = 0
    prompts: tuple[int, ...] = ()

    @property
    def query_heads(self) -> int:
        """How many query heads there are."""
        return self.group * self.layout.heads

    @property
    def most_keys(self) -> int:
        """The longest context that a table row has room for."""
        return self.row * self.layout.page_size

    @property
    def reach(self) -> int:
        """A context of which a window or a chunk leaves out a key for the last query; 0 without either."""
        extents = [self.options[name] for name in ("window", "chunk") if name in self.options]
        return max(extents, default=-1) + 1

    def first_key(self, q_len: int, kv_len: int) -> int:
        """The first token of a sequence that any of its query tokens can read."""
        window, chunk = self.options.get("window"), self.options.get("chunk")
        start = max(kv_len - q_len, 0)
        return max(start - window + 1 if window else 0, start // chunk * chunk if chunk else 0, 0)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of an attention call, but for the sinks."""
        named = dict(self.options)
        if self.layout.dims[0] != self.layout.dims[1] and not self.is_latent:
            named["v_head_dim"] = self.layout.dims[1]
        return named | ({"num_kv_heads": self.layout.heads} if self.layout.is_padded else {}) | self.layout.options

    @property
    def is_latent(self) -> bool:
        """Whether the cache is one of latents."""
        return isinstance(self.layout, LatentLayout)

    @property
    def function(self) -> str:
        """The name of the function that attends."""
        return "mla_paged_attention" if self.is_latent else "ragged_paged_attention"


def sinks_of(setup: Setup, seed: int) -> Array:
    """A sink for each query head, f32."""
    return signed(seed + 3, (setup.query_heads,), scale=2.0)


COMMON = {
    "plain": Setup(Layout()),
    "window": Setup(
        Layout("v2", dims=(24, 24), page_size=3, num_pages=16),
        group=3,
        options={"window": 3, "soft_cap": 5.0, "scale": 0.25},
    ),
    "chunk": Setup(
        Layout("v3", "int8", heads=3, dims=(40, 16), scaled=True, page_size=2, num_pages=24),
        group=1,
        row=9,
        options={"chunk": 5, "q_scale": 0.5},
    ),
    "columns": Setup(
        Layout("seq_on_lane", "bfloat16", heads=3, dims=(40, 24), page_size=5, num_pages=14),
        group=2,
        queries="bfloat16",
        options={"window": 8, "soft_cap": 4.0},
    ),
    "both sides": Setup(
        Layout("v3", "bfloat16", heads=3, dims=(64, 64), as_bits=True),
        queries="bfloat16",
        options={"causal": False, "window": 7},
        sinks=True,
    ),
}
"""Masks, layouts and types that many models have; the first is the simplest."""

LIMITS = {
    "uneven": Setup(
        Layout("v2", heads=1, dims=(80, 80), page_size=2, num_pages=160),
        group=17,
        row=70,
        num_seqs=2,
        options={"window": 40},
    ),
    "tall": Setup(
        Layout("v2", "bfloat16", heads=1, page_size=128, num_pages=6),
        group=3,
        queries="bfloat16",
        row=313,
        num_seqs=2,
        num_tokens=4,
        options={"window": 50, "causal": False},
        sinks=True,
        tall=32700,
    ),
    "wide": Setup(
        Layout("v2", "float8_e4m3fn", heads=1, page_size=1, num_pages=65550, as_bits=True, scales=(0.5, 2.0)),
        row=8,
        num_seqs=2,
        options={"window": 6, "chunk": 4},
        first_page=65530,
    ),
    "long": Setup(
        Layout("v2", heads=1, page_size=16, num_pages=96),
        row=40,
        num_seqs=2,
        num_tokens=96,
        prompts=(31, 33, 64, 70),
    ),
    "long columns": Setup(
        Layout("seq_on_lane", heads=1, page_size=16, num_pages=48),
        row=20,
        num_seqs=2,
        options={"window": 201},
    ),
}
"""Many query heads of an odd size, long rows, positions past 32767, page ids past 65535; contexts of which no mask
leaves out anything, and prompts, that are longer than what kernels take at a time; windows over columns that are so,
too, and begin within a page."""

LATENT = {
    "latent": Setup(
        LatentLayout("v2", dims=(28, 20), page_size=3, num_pages=16), group=3, options={"scale": 0.25, "window": 5}
    )
}
"""Attention over latents."""

INTERPRETED = {
    "interpreted": Setup(Layout("v2", heads=4), row=4, num_seqs=3, num_tokens=6, options={"window": 9}),
    "interpreted, half": Setup(
        Layout("v3", "bfloat16", page_size=8), queries="bfloat16", row=3, num_seqs=2, num_tokens=3
    ),
}
"""Shapes that kernels take, and that are interpreted in a second or a few: of many dtypes, and made for decoding."""

GPU_INTERPRETED = {
    "interpreted as on a GPU": Setup(
        Layout("v2", "bfloat16", dims=(64, 64), page_size=8),
        queries="bfloat16",
        row=4,
        num_seqs=3,
        num_tokens=6,
        options={"window": 9},
    ),
}
"""A shape that kernels for a GPU's tensor cores take."""

_VALUES: dict[str, Any] = {
    "scale": 0.3,
    "window": 3,
    "chunk": 5,
    "soft_cap": 2.0,
    "q_scale": 0.5,
    "causal": False,
}

_WIDE = 9

_OF_LATENTS = ("window", "soft_cap", "causal")
"""The options that attention over latents has, beside the scale, which it must be given."""


def _with_option(name: str, value: object, setup: Setup) -> Setup:
    return replace(setup, options={**setup.options, name: value})


NARROW = {
    "rows": Setup(Layout("v2")),
    "rows, window": Setup(Layout("v2", page_size=3, num_pages=16), options={"window": 3}),
    "rows, half": Setup(Layout("v2", "bfloat16"), queries="bfloat16", options={"soft_cap": 5.0}),
    "written, window": Setup(Layout("v3"), options={"window": 2}),
}
"""What is drawn beside the others for a backend that says what it takes: few options, plain types."""

OPTIONS: dict[str, Callable[[Setup], Setup]] = {
    **{name: functools.partial(_with_option, name, value) for name, value in _VALUES.items()},
    "sinks": lambda setup: replace(setup, sinks=True),
    "k_scale": lambda setup: replace(setup, layout=replace(setup.layout, scales=(0.5, setup.layout.scales[1]))),
    "v_scale": lambda setup: replace(setup, layout=replace(setup.layout, scales=(setup.layout.scales[0], 2.0))),
    "v_head_dim": lambda setup: replace(setup, layout=replace(setup.layout, dims=(setup.layout.dims[0], 8))),
}
"""Every option of attention, as what it makes of a setup without it."""

IN_PAGES = frozenset({"k_scale", "v_scale"})
"""The options that change what stands in a page."""

BASES = {
    "plain": Setup(Layout()),
    "rows": Setup(Layout("v2")),
    "columns": Setup(Layout("seq_on_lane")),
    "latent": Setup(LatentLayout("v2", dims=(28, 20)), options={"scale": 0.25}),
}
"""Setups with no options but those that a call must have; some are added to them."""

MASKS = ("window", "chunk")
"""The options that leave out keys which came long before; in which order they bind depends on which is narrower."""

WIDE_WINDOW = "wide window"
"""A window that is wider than the chunks, added in the place of the other."""

_MOST_OPTIONS = 6
"""The most options that are added to one of these; see `shared_out`."""


def name_with(base: str, options: Iterable[str]) -> str:
    """The name of a setup of `BASES` with options."""
    return f"{base} with {', '.join(sorted(options))}"


def shared_out(options: Sequence[str]) -> list[list[str]]:
    """Options shared out among a few setups, so that any two are together in one of them, and each is in one alone.

    Each option is in most of the setups, no two options in the same ones: what is in most of them overlaps, as
    majorities do. The first two options are together in two setups where there are five.
    """
    count = next(odd for odd in range(1, 2 * len(options) + 2, 2) if comb(odd, odd // 2 + 1) >= len(options))
    setups: list[list[str]] = [[] for _ in range(count)]
    for option, majority in zip(options, combinations(range(count), count // 2 + 1), strict=False):
        for place in majority:
            setups[place].append(option)
    return [setup for setup in setups if setup]


def _with_options() -> dict[str, Setup]:
    """Every setup of `BASES` with up to `_MOST_OPTIONS` options, by its name."""
    made: dict[str, Setup] = {}
    for base, plain in BASES.items():
        known = _OF_LATENTS if plain.is_latent else tuple(OPTIONS)
        setups: dict[tuple[str, ...], Setup] = {(): plain}
        for option in known:
            fewer = [(chosen, setup) for chosen, setup in setups.items() if len(chosen) < _MOST_OPTIONS]
            setups |= {(*chosen, option): OPTIONS[option](setup) for chosen, setup in fewer}
        made |= {name_with(base, chosen): setup for chosen, setup in setups.items() if chosen}
        for chosen, setup in setups.items():
            if set(chosen).issuperset(MASKS):
                others = [option for option in chosen if option != MASKS[0]]
                made[name_with(base, [*others, WIDE_WINDOW])] = _with_option(MASKS[0], _WIDE, setup)
    return made


SETUPS: dict[str, Setup] = {
    **COMMON,
    **LIMITS,
    **LATENT,
    **INTERPRETED,
    **GPU_INTERPRETED,
    **NARROW,
    **_with_options(),
}
"""All setups by name. Each costs a program for each attention, a second or two: so few are drawn in a run."""


@dataclass(frozen=True)
class Batch:
    """Sequences for one attention call.

    Attributes:
        setup: the setup's name.
        q_lens: query tokens of each sequence.
        kv_lens: tokens of each sequence, its query tokens among them.
        pages: the pages that each sequence holds, from its first token on.
        released: how many of the first of them are released, so that the table names `NULL` there.
        padding: what the table holds where no page is: ids in turn, live ones, impossible ones.
        beyond: what lengths past the last sequence are.
        content: ``normal``; ``hot``: large scores; ``cold``: scores far below zero.
        seed: the seed of all numbers.
    """

    setup: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    released: tuple[int, ...]
    padding: tuple[int, ...] = (-1,)
    beyond: int = 0
    content: str = "normal"
    seed: int = 0

    @property
    def kind(self) -> Setup:
        """The setup."""
        return SETUPS[self.setup]

    @property
    def tokens(self) -> int:
        """Query tokens of all sequences."""
        return sum(self.q_lens)

    def live_slots(self) -> Array:
        """The slots that any query token reads, each once, in order."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *map(self.slots, range(len(self.q_lens)))]))

    def slots(self, sequence: int) -> Array:
        """The slots of those of one sequence's tokens that any of its query tokens reads."""
        size, q_len, kv_len = self.kind.layout.page_size, self.q_lens[sequence], self.kv_lens[sequence]
        places = np.arange(self.kind.first_key(q_len, kv_len) if q_len else kv_len, kv_len)
        return np.array(self.pages[sequence], np.int64)[places // size] * size + places % size

    def numbers(self) -> tuple[Array, Array, Array]:
        """Queries `[tokens, Hq, D]`, and keys and values of the live slots, in their order, in float32."""
        setup, count = self.kind, len(self.live_slots())
        of_keys, of_values = setup.layout.dims
        shapes = (
            (self.tokens, setup.query_heads, of_keys),
            (count, setup.layout.heads, of_keys),
            (count, setup.layout.heads, of_values),
        )
        queries, keys, values = (signed(self.seed + place, shape) for place, shape in enumerate(shapes))
        if self.content == "normal":
            return queries, keys, values
        # Whole numbers and a scale that is a power of two: scores are exact, however large: nothing excuses errors.
        queries, keys = np.clip(np.rint(queries), -2, 2), np.clip(np.rint(keys), -2, 2)
        if self.content == "hot":
            return queries * 16, keys * 16, values
        queries[..., 0], keys[..., 0] = 64, -64
        return queries, keys, values

    def written(self) -> Array:
        """The slot of each query token, `[tokens]`; -1 where its position is negative: it is not written."""
        size = self.kind.layout.page_size
        slots = [np.zeros(0, np.int64)]
        for q_len, kv_len, held in zip(self.q_lens, self.kv_lens, self.pages, strict=True):
            at = np.arange(max(kv_len - q_len, 0), kv_len)
            slots += [np.full(max(q_len - kv_len, 0), -1), np.array(held, np.int64)[at // size] * size + at % size]
        return np.concatenate(slots)

    def new_tokens(self) -> tuple[Array, Array]:
        """The keys and values of the query tokens, `[num_tokens, H, D]`; NaN past the last sequence.

        Those that are not written are 1, not NaN: a slot that nobody reads holds NaN, and would not be seen to change.
        """
        slots = self.written()
        order = np.searchsorted(self.live_slots(), slots[slots >= 0])
        made = []
        for numbers in self.numbers()[1:]:
            padded = poisoned((self.kind.num_tokens, *numbers.shape[1:]), "float32")
            padded[: self.tokens] = 1
            padded[: self.tokens][slots >= 0] = numbers[order]
            made.append(padded.astype(self.kind.queries))
        return made[0], made[1]

    def kv_pages(self, clean: bool = False, before: bool = False) -> Any:
        """The cache, of the specification: NaN wherever no query token reads.

        Args:
            clean: zeros instead of NaN.
            before: as it is before the query tokens are written: NaN in their slots.
        """
        slots, (_, keys, values) = self.live_slots(), self.numbers()
        if before:
            kept = ~np.isin(slots, self.written())
            slots, keys, values = slots[kept], keys[kept], values[kept]
        layout = self.kind.layout
        if clean:
            rest = np.setdiff1d(np.arange(layout.num_slots), slots)
            nothing = [np.zeros((len(rest), *part.shape[1:]), np.float32) for part in (keys, values)]
            slots, keys, values = (
                np.concatenate(parts) for parts in zip((slots, keys, values), (rest, *nothing), strict=True)
            )
        return layout.filled(slots, keys, values)

    def arguments(self, clean: Iterable[str] = ()) -> list[Any]:
        """The arguments of an attention call, in their order.

        Args:
            clean: what of this is harmless, in order to tell who minds it: ``slots``, ``padding``.
        """
        setup, words = self.kind, set(clean)
        count, harmless = len(self.q_lens), "padding" in words
        queries = poisoned((setup.num_tokens, setup.query_heads, setup.layout.dims[0]), setup.queries)
        if harmless:
            queries[:] = 0
        queries[: self.tokens] = self.numbers()[0].astype(setup.queries)
        kv_lens = np.full(setup.num_seqs, 0 if harmless else self.beyond, np.int32)
        kv_lens[:count] = self.kv_lens
        starts = np.full(setup.num_seqs + 1, self.tokens if harmless else self.beyond, np.int32)
        starts[: count + 1] = np.cumsum([0, *self.q_lens])
        table = np.zeros(setup.num_seqs * setup.row, np.int32) + (
            0 if harmless else np.resize(np.array(self.padding, np.int32), setup.num_seqs * setup.row)
        )
        table = table.reshape(setup.num_seqs, setup.row).astype(np.int32)
        for row, held in enumerate(self.pages):
            table[row, : len(held)] = held
            table[row, : self.released[row]] = NULL
        pages = self.kv_pages("slots" in words)
        first = [queries]
        if setup.is_latent:
            first = [queries[..., : setup.layout.dims[1]], queries[..., setup.layout.dims[1] :]]
        return [*first, pages, kv_lens, table, starts, np.array([count], np.int32)]

    def keywords(self) -> dict[str, Any]:
        """The keywords of the call."""
        setup = self.kind
        return setup.keywords | ({"sinks": sinks_of(setup, self.seed)} if setup.sinks else {})

    def rows_that_read_nothing(self) -> Array:
        """Which query rows stand at a negative position, `bool[num_tokens]`; none past the last sequence."""
        reads_nothing = np.zeros(self.kind.num_tokens, bool)
        reads_nothing[: self.tokens] = np.concatenate(
            [np.zeros(0, np.int64), *(kv - q + np.arange(q) for q, kv in zip(self.q_lens, self.kv_lens, strict=True))]
        ) < 0  # fmt: skip
        return reads_nothing

    def tolerance(self, right: Array, pages: Any) -> Array:
        """How far off each entry of a result may be (ATT-6)."""
        setup = self.kind
        _, values = setup.layout.read(pages, self.live_slots())
        largest = float(np.abs(values).max(initial=0.0))
        if setup.queries == "float32" and setup.layout.dtype not in ("bfloat16", "float16"):
            return np.full(right.shape, 2.0**-FINE_BITS * largest)
        return 2.0**-8 * (np.abs(right) + largest)


_PADDINGS: tuple[tuple[int, ...], ...] = ((-1,), (NULL,), (2**31 - 1,), (NULL,), (1, 2, 3), (-(2**31), 5))
_BEYOND = (-1, 2**31 - 1, 0, 7)


def draw_batch(data: Drawing, name: str, writes: bool = False) -> Batch:
    """Draws a batch for a setup.

    Args:
        data: where it is drawn from.
        name: the setup's.
        writes: whether the query tokens are written in the same call: then a sequence shares pages only with
            sequences that write in them what it reads.
    """
    setup = SETUPS[name]
    count = data.draw(st.integers(1, setup.num_seqs)) if not data.rarely() else 0
    left, q_lens, kv_lens = setup.num_tokens, [], []
    for _ in range(count):
        q_lens.append(min(data.draw(st.sampled_from([1, 2, 3, 5, 0, 1, 7, *setup.prompts])), left, setup.most_keys))
        left -= q_lens[-1]
        kv_lens.append(_draw_length(data, setup, q_lens[-1], writes))
    reserved = 1 if setup.first_page == 0 and data.one_of([True, False]) else 0
    seed = data.draw(st.integers(0, 99))
    pages = _draw_pages(data, setup, q_lens, kv_lens, seed, max(setup.first_page, reserved), writes)
    released = [
        setup.first_key(q, kv) // setup.layout.page_size if reserved and not data.rarely() else 0
        for q, kv in zip(q_lens, kv_lens, strict=True)
    ]
    if writes and data.one_of([False, True]):  # so that a request reads what a later one writes
        for drawn in (q_lens, kv_lens, pages, released):
            drawn.reverse()
    contents = ["normal"]
    scale = setup.options.get("scale", setup.layout.dims[0] ** -0.5)
    if setup.layout.dtype == "float32" and frexp(scale)[0] == 0.5:  # else large scores are rounded
        contents += ["hot" if "soft_cap" in setup.options else "cold"]
    return Batch(
        name,
        tuple(q_lens),
        tuple(kv_lens),
        tuple(map(tuple, pages)),
        tuple(released),
        data.one_of(_PADDINGS + ((NULL,),) * 4 if writes and not reserved else _PADDINGS),  # page 0 is in use
        data.one_of(_BEYOND),
        data.one_of(contents),
        seed,
    )


def _draw_length(data: Drawing, setup: Setup, q_len: int, writes: bool) -> int:
    """How many tokens a sequence has: about the ends of pages, now and then fewer than its query tokens.

    More often than not they are more than a window or a chunk lets through.
    """
    size = setup.layout.page_size
    if q_len and (data.one_of([False, False, True]) if writes else data.rarely()):
        if writes and not data.rarely():
            return min(q_len, setup.most_keys)  # a prompt that begins
        return data.draw(st.integers(0, q_len - 1))
    if setup.tall and data.one_of([True, False]):
        length = data.draw(st.sampled_from([32767, 32768, 32769, 40000, setup.most_keys]))
    else:
        every = range(setup.row + 1)
        beyond = every[-(-setup.reach // size) :] or every
        whole = data.one_of(data.one_of([every, beyond, beyond])) * size
        length = max(whole + data.draw(st.sampled_from([0, 1, -1, 2])), q_len)
    return max(min(length, setup.most_keys), q_len)


def _draw_pages(
    data: Drawing, setup: Setup, q_lens: list[int], kv_lens: list[int], seed: int, first: int, writes: bool
) -> list[list[int]]:
    """The pages of each sequence: others in any order, a shared prefix, a page more than it needs.

    Where query tokens are written, a sequence often goes on right behind the full pages of another, which writes there.
    """
    size = setup.layout.page_size
    waiting = list(range(first, setup.layout.num_pages))
    if seed % 2:  # else in order: the first sequence begins in the first page
        waiting = np.random.default_rng(seed).permutation(waiting).tolist()
    pages: list[list[int]] = []
    for place, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        wanted = -(-kv_len // size)
        held: list[int] = []
        if place and data.one_of([False, True]):
            other = data.draw(st.integers(0, place - 1))
            behind = kv_lens[other] // size * size + q_len
            if writes and behind <= setup.most_keys and data.one_of([True, False]):
                kv_lens[place] = kv_len = behind
                wanted = -(-kv_len // size)
            held = pages[other][: min(kv_lens[other], kv_len - q_len) // size] if kv_len > q_len else []
        if setup.tall and wanted > len(held) + 2:  # one page stands for all that are far back
            held = held + waiting[:1] * (wanted - len(held) - 2)
            del waiting[:1]
        lacking = wanted - len(held)
        if lacking > len(waiting):
            kv_lens[place] = kv_len = (len(held) + len(waiting)) * size
            q_lens[place] = min(q_len, kv_len)
            lacking = len(waiting)
        if lacking < len(waiting) and wanted < setup.row and data.rarely():
            lacking += 1
        held = held + waiting[:lacking]
        del waiting[:lacking]
        pages.append(held)
    return pages
