"""The cache machine: updates of every layout and type, by slots and by slices; copies of pages; states."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from ..levels import LEVELS
from ..properties import start, step
from .arrays import Array, bits, exact, poisoned, signed
from .base import Both, Side
from .cache_base import LAYOUTS, TOKENS
from .cache_faults import CacheFaults
from .draws import Drawing, one_of, some
from .layouts import Layout

__all__ = ["Cache"]

_SLICES = 4
_COPIES = 3

_FEW = {"exact": 3, "rounded": 2}
"""How many layouts there are in a run of the usual length: a second goes into the programs of each."""


class Cache(CacheFaults):
    """A cache that is written, and whose pages are copied, again and again."""

    name = "cache"
    levels = frozenset(LEVELS)
    capability = "caches"
    needs = ("kv_cache_update",)
    examples, num_steps = 24, 14

    @start("CACHE-3", layout=st.sampled_from(LAYOUTS))
    def construct(self, layout: Layout) -> None:
        """A cache that holds NaN, or a large number where there is no NaN."""
        few = "exact" if exact(layout.dtype) else "rounded"
        layout = self.session.one_of_few(few, layout, _FEW[few])
        names = self.backend.names
        lacking = layout.update if not names.offers(layout.update) else "ScaledPages"
        if not names.offers(lacking) and (layout.scaled or lacking == layout.update):
            self.session.lacks.add(lacking)
            layout = LAYOUTS[0]
        self.build_cache(layout)

    # -- Updates --------------------------------------------------------------------------------------------

    @step("CACHE-2", "CACHE-3", "CACHE-4", weight=4)
    def write_slots(self, data: Drawing) -> None:
        """Writes tokens into slots anywhere; padding tokens hold NaN and write nothing."""
        shown, keys, values = self.new_tokens(data)
        slots = some(data, range(self.layout.num_slots), most=TOKENS)
        places = some(data, range(TOKENS), most=len(slots), least=len(slots))
        mapping = np.full(TOKENS, one_of(data, [-1, self.layout.num_slots, -(2**31), 2**31 - 1]), np.int32)
        mapping[places] = slots
        unnamed = np.setdiff1d(np.arange(TOKENS), places)
        keys[unnamed], values[unnamed] = np.nan, np.nan
        line = f"pages = {self.layout.update}(pages, keys, values, {mapping.tolist()})  # {shown}"
        self.update(line, keys, values, (mapping,), {}, slots, places)

    @step("CACHE-2", "CACHE-3", "CACHE-4", weight=3)
    def write_slices(self, data: Drawing) -> None:
        """Writes runs of tokens, each into one page; columns past their number hold anything."""
        shown, keys, values = self.new_tokens(data)
        size = self.layout.page_size
        columns: list[tuple[int, int, int]] = []
        slots: list[int] = []
        places: list[int] = []
        for page in some(data, range(self.layout.num_pages), most=_SLICES):
            first = data.draw(st.integers(0, size - 1))
            length = data.draw(st.integers(1, min(size - first, TOKENS)))
            token = data.draw(st.integers(0, TOKENS - length))
            columns.append((page * size + first, token, length))
            slots += range(page * size + first, page * size + first + length)
            places += range(token, token + length)
        slices = np.resize(np.array(one_of(data, [-1, 0, 2**31 - 1]), np.int32), (3, _SLICES))
        slices[:, : len(columns)] = np.array(columns, np.int32).reshape(-1, 3).T
        count = np.array([len(columns)], np.int32)
        line = (
            f"pages = {self.layout.update}(pages, keys, values, {slices.tolist()}, num_slices=[{count[0]}])  # {shown}"
        )
        self.update(line, keys, values, (slices,), {"num_slices": count}, slots, places)

    def update(
        self,
        line: str,
        keys: Any,
        values: Any,
        where: tuple[Any, ...],
        more: dict[str, Any],
        slots: list[int],
        places: list[int],
    ) -> None:
        """Updates both caches, and holds the backend's against the slots named."""
        before = self.backend.pages

        def act(side: Side) -> Any:
            update = side.names.get(self.layout.update)
            return update(side.pages, *self.layout.tokens(keys, values), *where, **more, **self.layout.options)

        made = self.call(line, act, "CACHE-3", self.described)
        self.hold_update(before, made.backend, slots, keys[places], values[places])
        self.keep(made)

    def keep(self, made: Both) -> None:
        """Goes on with the caches that a call returned."""
        for side in (self.spec, self.backend):
            side.put({"pages": made.of(self, side)})

    def can_donate(self) -> bool:
        """Whether the backend's cache is one of JAX; a program is compiled for one layout only."""
        plain = not self.layout.scaled and self.session.one_of_few("donated", self.layout, 1) == self.layout
        return plain and hasattr(self.backend.pages, "sharding")

    @step(
        "CACHE-2",
        "CACHE-3",
        "CACHE-4",
        when=can_donate,
    )
    def write_in_place(self, data: Drawing) -> None:
        """A cache that is donated is written where it lies, not in a copy of it."""
        shown, keys, values = self.new_tokens(data)
        slots = some(data, range(self.layout.num_slots), most=TOKENS, least=TOKENS)
        mapping = np.array(slots, np.int32)
        update = _donating(self.backend.names.get(self.layout.update), tuple(self.layout.options.items()))
        self.calls.append(f"jit({self.layout.update}, donate_argnums=0)(pages, keys, values, {slots})  # {shown}")
        pages = jax.numpy.array(self.backend.pages)
        place = pages.unsafe_buffer_pointer()
        written = update(pages, *self.layout.tokens(keys, values), mapping)
        self.check("CACHE-3", "the cache's memory", place, written.unsafe_buffer_pointer)
        self.hold_update(self.backend.pages, written, slots, keys, values)

    @step("CACHE-3", when=lambda self: not self.layout.scaled and hasattr(self.backend.pages, "sharding"))
    def too_many_slots(self, _: Drawing) -> None:
        """A cache with more slots than 32 bits number is refused: nothing of it has to exist for that."""
        layout = self.layout
        shape = (-(-(2**31) // layout.page_size), layout.page_size, *layout.slot_shape)
        dtype = self.parts(self.backend.pages)[0].dtype if layout.as_bits else np.dtype(layout.dtype)
        tokens = [np.zeros((TOKENS, layout.heads, size), np.float32) for size in layout.dims]
        slots = np.full(TOKENS, -1, np.int32)

        def act(side: Side) -> Any:
            update = functools.partial(side.names.get(layout.update), **layout.options)
            if side is self.spec:
                return update(np.broadcast_to(np.zeros((), dtype), shape), *layout.tokens(*tokens), slots)
            pages: Any = jax.ShapeDtypeStruct
            return jax.eval_shape(update, pages(shape, dtype), *layout.tokens(*tokens), slots)

        self.call(f"{layout.update}(<pages of {shape[0]} x {shape[1]} slots>, keys, values, slots)", act, "CACHE-3")

    # -- Copies -----------------------------------------------------------------------------------------------

    @step("MAN-13", when=lambda self: self.offered("copy_pages"))
    def copy_pages(self, data: Drawing) -> None:
        """Copies whole pages; pairs that name no page do nothing."""
        count = self.layout.num_pages
        pages = some(data, range(count), most=2 * _COPIES)
        pairs = list(zip(pages[0::2], pages[1::2], strict=False))
        nothing = [(-1, 0), (0, -1), (count, 1), (1, count), (-1, -1)]
        pairs += [one_of(data, nothing) for _ in range(_COPIES - len(pairs))]
        sources, targets = np.array(pairs, np.int32).T.reshape(2, _COPIES)
        before = self.parts(self.backend.pages)
        wanted = [part.reshape(count, -1).copy() for part in before]
        for source, target in pairs:
            if 0 <= source < count and 0 <= target < count:
                for part in wanted:
                    part[target] = part[source]
        copied = self.call(
            f"pages = copy_pages(pages, {sources.tolist()}, {targets.tolist()})",
            lambda side: side.names.get("copy_pages")(side.pages, sources, targets),
            "MAN-13",
            self.described,
        )
        for want, part in zip(wanted, self.parts(copied.backend), strict=True):
            self.check("MAN-13", "pages that differ", [], functools.partial(_unlike, want, part))
        self.keep(copied)

    @step("SWAP-2", when=lambda self: self.offered("export_pages") and self.offered("write_states"))
    def export_pages(self, data: Drawing) -> None:
        """Pages leave the device and come back: what is live bit for bit, dead slots, and pages that are none, zero."""
        count, size = self.layout.num_pages, self.layout.page_size
        ids = np.array([data.draw(st.integers(-1, count)) for _ in range(_COPIES)], np.int32)
        slots = np.array([one_of(data, [size, *range(size + 1), -1, size + 1]) for _ in range(_COPIES)], np.int32)
        given = f"{ids.tolist()}, {slots.tolist()}"
        left = self.call(
            f"block = export_pages(pages, {given})",
            lambda side: side.names.get("export_pages")(side.pages, ids, slots),
            "SWAP-2",
            self.described,
        )
        before = self.pages_of(self.backend.pages)
        for old, new in zip(before, self.pages_of(left.backend), strict=True):
            live = (np.arange(size)[None] < slots[:, None]) & (ids >= 0)[:, None] & (ids < count)[:, None]
            wanted = np.where(live[..., None], old[np.clip(ids, 0, count - 1)], 0)
            if np.any(new != wanted):
                place, slot = np.argwhere(np.any(new != wanted, axis=2))[0].tolist()
                kind = "as it was" if live[place, slot] else "zero"
                self.differ("SWAP-2", f"slot {slot} of block {place} {kind}", "something else")
        targets = np.array([*some(data, range(count), most=_COPIES, least=_COPIES)], np.int32)
        written = self.call(
            f"pages = write_states(pages, {targets.tolist()}, block)",
            lambda side: side.names.get("write_states")(side.pages, targets, left.of(self, side)),
            "SWAP-2",
            self.described,
        )
        for old, new, block in zip(before, self.pages_of(written.backend), self.pages_of(left.backend), strict=True):
            wanted = old.copy()
            wanted[targets] = block
            if np.any(new != wanted):
                self.differ("SWAP-2", f"pages {targets.tolist()} are the block's, others as before", "other pages")
        self.keep(written)

    def pages_of(self, pages: Any) -> list[Array]:
        """The bits of each part of some pages, `[pages, page size, ...]`."""
        parts = tuple(pages) if self.layout.scaled else (pages,)
        return [bits(part).reshape(part.shape[0], self.layout.page_size, -1) for part in parts]

    @step("MAN-13", when=lambda self: self.offered("read_states") and self.offered("write_states"))
    def write_states(self, data: Drawing) -> None:
        """States of different shapes are written and read page by page; no page reads as zeros."""
        seed, count = data.draw(st.integers(0, 99)), 4
        pages = {"conv": poisoned((count, 3), "float32"), "ssm": poisoned((count, 2, 2), "bfloat16")}
        pages["conv"][3] = 1.0
        ids = some(data, range(count - 1), most=3)
        named = np.array([*ids, *[-1] * (3 - len(ids))], np.int32)
        states = {name: signed(seed, (3, *part.shape[1:]), str(part.dtype)) for name, part in pages.items()}

        def act(side: Side) -> Any:
            written = side.names.get("write_states")(pages, named, states)
            return written, side.names.get("read_states")(written, named), side.names.get("read_states")(pages, named)

        def shown(found: Any, _: Side) -> object:
            return [{name: bits(part).tolist() for name, part in sorted(tree.items())} for tree in found]

        line = f"write_states(pages, {named.tolist()}, states), read_states(...)  # states of seed {seed}"
        self.call(line, act, "MAN-13", shown)

    def offered(self, name: str) -> bool:
        """Whether the backend has a function; one that it lacks is not called."""
        found = self.backend.names.offers(name)
        if not found:
            self.session.lacks.add(name)
        return found


@functools.lru_cache(maxsize=64)
def _donating(update: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Any:
    """An update that is given its cache."""

    def given(pages: Any, keys: Any, values: Any, slots: Any) -> Any:
        return update(pages, keys, values, slots, **dict(options))

    return jax.jit(given, donate_argnums=0)


def _unlike(wanted: Array, part: Array) -> list[int]:
    """The pages that differ."""
    unlike: list[int] = np.flatnonzero(np.any(wanted != part.reshape(wanted.shape), axis=1)).tolist()
    return unlike
