"""The cache machine: updates of every layout and type, by slots and by slices; copies of pages; states."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np
from hypothesis import strategies as st

from ..backends.levels import LEVELS
from ..calls.cache import CACHES, COPIES, TOKENS, ints, tokens_of
from ..calls.datum import Call, Ref, resolve
from ..calls.deviation import attempt
from ..calls.method import Method, Table
from ..calls.values import signed
from .arrays import Array, bits, exact, poisoned
from .base import Both, Machine, Nothing, Side
from .calling import Calling, Calls
from .draws import Drawing, some
from .layouts import LatentLayout, Layout, takes_version
from .properties import start, step

__all__ = ["Cache", "CacheMachine", "rounding"]


LAYOUTS = (
    Layout(),
    Layout("v2", heads=3, dims=(24, 24), page_size=3, num_pages=5),
    Layout("v3", "bfloat16", heads=3, dims=(64, 64), page_size=2, num_pages=4),
    Layout("v3", "bfloat16", heads=1, dims=(80, 16), page_size=4, num_pages=4, as_bits=True),
    Layout("v2", "float16", heads=2, dims=(64, 64), page_size=1, num_pages=7),
    Layout("v3", "int8", heads=3, page_size=4, num_pages=4, scaled=True),
    Layout("v3", "float8_e4m3fn", heads=1, dims=(64, 64), page_size=4, num_pages=4, as_bits=True, scales=(0.5, 2.0)),
    Layout("v2", "float8_e5m2", heads=2, dims=(16, 16), page_size=4, num_pages=4, scaled=True, as_bits=True),
    Layout("seq_on_lane", "bfloat16", heads=3, dims=(40, 24), page_size=3, num_pages=5),
    Layout("seq_on_lane", "int8", heads=2, dims=(16, 16), page_size=4, num_pages=4, scaled=True),
    Layout("v2", "int8", heads=1, dims=(96, 96), page_size=4, num_pages=4, scales=(0.03125, 0.25)),
    LatentLayout("v2", "bfloat16", dims=(40, 24), page_size=2, num_pages=5, as_bits=True),
    LatentLayout("v2", "float8_e4m3fn", dims=(136, 130), page_size=3, num_pages=4),
)
"""The caches that are drawn; the first is the simplest."""

_ROUNDING = {"int8": (0.0, 0.5), "float8_e4m3fn": (2.0**-4, 2.0**-10), "float8_e5m2": (2.0**-3, 2.0**-17)}
"""CACHE-4: how far off a stored number may be: by a part of itself, and of its scale."""


_SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest normal number of float32: no scale is smaller."""


def rounding(dtype: str, numbers: Array, scales: Array) -> Array:
    """How far off stored numbers may be (CACHE-4).

    Args:
        dtype: the type that they are stored as.
        numbers: the numbers.
        scales: what they are divided by, of a shape that fits.
    """
    part, whole = _ROUNDING[dtype]
    allowed: Array = (np.abs(numbers) * part + scales * whole) * (1 + 2.0**-16)
    return allowed


class CacheMachine(Machine):
    """Two caches side by side. A side has its ``pages``; both hold poison at first.

    Attributes:
        layout: what they hold and how.
    """

    layout: Layout

    def build_cache(self, layout: Layout) -> None:
        """Fills both caches with poison: what is not written never changes."""
        self.layout = layout
        empty = layout.empty()
        self.build(
            f"pages = {layout}, all NaN",
            "CACHE-3",
            lambda side: {"pages": layout.given_to(side.names, empty), "scaled": layout.scaled},
        )

    def parts(self, pages: Any) -> tuple[Array, ...]:
        """The bits of everything in a cache, a row for each slot."""
        parts = tuple(pages) if self.layout.scaled else (pages,)
        return tuple(bits(self.layout.slots_first(part)).reshape(self.layout.num_slots, -1) for part in parts)

    def described(self, pages: Any, _: Side) -> object:
        """An update's result, but for what it holds."""
        parts = tuple(pages) if self.layout.scaled else (pages,)
        return [(tuple(part.shape), str(part.dtype)) for part in parts]

    def hold_update(self, before: Any, after: Any, slots: Sequence[int], keys: Array, values: Array) -> None:
        """Holds an update against what it names.

        Args:
            before: the backend's cache before it.
            after: its cache after it.
            slots: the slots named, all of them different.
            keys: what was to be written there, in their order.
            values: the values, in their order.
        """
        old, new = self.parts(before), self.parts(after)
        changed = np.any([np.any(one != other, axis=1) for one, other in zip(old, new, strict=True)], axis=0)
        self.compared("CACHE-3")
        strange = sorted(set(np.flatnonzero(changed).tolist()) - set(slots))
        if strange:
            self.differ("CACHE-3", f"slots {sorted(slots)} change", f"slots {strange} change as well")
        lost = sorted(set(slots) - set(np.flatnonzero(changed).tolist()))
        if lost and not self._holds(after, lost, slots, keys, values):
            self.differ("CACHE-3", f"slots {sorted(slots)} are written", f"slots {lost} are as they were")
        if slots and np.any(self.layout.padding(after, list(slots)) != 0):
            self.differ("CACHE-3", "padding rows and columns of a written slot are 0", "others")
        self.hold_values(after, slots, keys, values)

    def _holds(self, pages: Any, some: Sequence[int], slots: Sequence[int], keys: Array, values: Array) -> bool:
        """Whether some of the slots hold what was to be written there, which they may have held before."""
        places = [list(slots).index(slot) for slot in some]
        return all(
            np.all(_within(seen[list(some)], wanted[places], bound[places]))
            for seen, (wanted, bound) in zip(
                self.layout.read(pages), self.wanted(pages, slots, keys, values), strict=True
            )
        )

    def hold_values(self, pages: Any, slots: Sequence[int], keys: Array, values: Array) -> None:
        """Holds what slots hold against what was written there (CACHE-2, CACHE-4)."""
        clause = "CACHE-2" if exact(self.layout.dtype) else "CACHE-4"
        self.compared(clause)
        if self.layout.scaled:
            self._hold_scales(pages, slots, keys, values)
        found = self.layout.read(pages)
        for what, seen, (wanted, bound) in zip(
            ("key", "value"), found, self.wanted(pages, slots, keys, values), strict=True
        ):
            off = ~_within(seen[list(slots)], wanted, bound)
            if off.any():
                at = tuple(np.argwhere(off)[0].tolist())
                place = f"{what} of slot {slots[at[0]]}, head {at[1]}, column {at[2]}: "
                self.differ(
                    clause, f"{place}{wanted[at]:.7g} within {bound[at]:.3g}", f"{seen[slots[at[0]]][at[1:]]:.7g}"
                )

    def wanted(self, pages: Any, slots: Sequence[int], keys: Array, values: Array) -> list[tuple[Array, Array]]:
        """For keys and values what slots must hold, and how far off each number may be."""
        dtype, limits = self.layout.dtype, []
        scales = self.layout.scales_of(pages)
        for what, numbers in enumerate((keys, values)):
            if exact(dtype):
                rounded = numbers.astype(dtype).astype(np.float64)
                limits.append((rounded, _flushed(rounded)))
                continue
            scale = scales[list(slots), what::2, None].astype(np.float64)
            cut = np.clip(numbers, -self.layout.largest * scale, self.layout.largest * scale)
            limits.append((cut, np.maximum(rounding(dtype, cut, scale), _flushed(cut))))
        return limits

    def _hold_scales(self, pages: Any, slots: Sequence[int], keys: Array, values: Array) -> None:
        """A slot's scale depends on that slot alone (CACHE-4)."""
        scales = self.layout.scales_of(pages)
        largest = np.stack([np.abs(keys).max(-1), np.abs(values).max(-1)], -1).reshape(
            len(slots), 2 * self.layout.heads
        )
        finite = np.minimum(largest.astype(np.float64), np.finfo(np.float32).max)
        wanted = np.where(largest > 0, np.maximum(finite / self.layout.largest, _SMALLEST), 1.0)
        seen = scales[list(slots)].astype(np.float64)
        off = ~(np.abs(seen - wanted) <= wanted * 2.0**-20)
        if off.any():
            slot, head = np.argwhere(off)[0].tolist()
            place = f"scale {head} of slot {slots[slot]}: "
            self.differ("CACHE-4", f"{place}{wanted[slot, head]:.7g}", f"{seen[slot, head]:.7g}")


_DRAWN = st.one_of(
    *(
        st.sampled_from([layout for layout in LAYOUTS if (layout.update, layout.version) == way])
        for way in dict.fromkeys((layout.update, layout.version) for layout in LAYOUTS)
    )
)
"""The layouts, each function and version as often as the others, so that every run draws one of each."""


class Cache(CacheMachine, Calling):
    """A cache that is written, and whose pages are copied, again and again."""

    name = "cache"
    levels = frozenset(LEVELS)
    capability = "caches"
    needs = ("kv_cache_update",)
    tables: ClassVar[tuple[Table, ...]] = (CACHES,)
    examples, num_steps = 39, 14

    @start("CACHE-3", layout=_DRAWN)
    def construct(self, layout: Layout) -> None:
        """A cache that holds NaN, or a large number where there is no NaN."""
        names = self.backend.names
        lacking = layout.update if not names.offers(layout.update) else "ScaledPages"
        if not names.offers(lacking) and (layout.scaled or lacking == layout.update):
            self.session.lacks.add(lacking)
            layout = LAYOUTS[0]
        if not takes_version(names, layout.version):
            self.session.lacks.add(f"{layout.update}(version)")
            layout = LAYOUTS[0]
        self.build_cache(layout)

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: all of them, those without a weight in steps of several calls."""
        return list(CACHES)

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: what a call gives is held against what it was given."""
        before = self.backend.pages
        both = super().make_call(call)
        if not both.refused:
            given = {name: resolve(value, self.backend) for name, value in call.arguments.items()}
            if call.method == self.layout.update:
                self.hold_written(call, given, before, both.backend)
            else:
                hold = getattr(self, f"hold_{call.method}")
                hold(given, before, both.backend)
        return both

    def learn(self, call: Call, both: Both) -> None:
        """See `Calling.learn`: goes on with the pages that a call returned; a block that was exported is another's."""
        if call.method != "export_pages":
            for side in (self.spec, self.backend):
                side.put({"pages": self.result_on(side, both)})

    @step("CACHE-2", "CACHE-3", weight=2)
    def misuse(self, source: Drawing) -> Calls:
        """Wrong types and shapes, slots named twice, slices that leave their page, slots that do not exist."""
        update = CACHES[self.layout.update]
        others = [row for row in CACHES if row.optional and self.backend.names.offers(row.name)]
        yield from self.each_spoilt(source.likely([update], others or [update]), source)

    # -- Updates --------------------------------------------------------------------------------------------

    def hold_written(self, call: Call, given: dict[str, Any], before: Any, after: Any) -> None:
        """Holds an update against the tokens that it names."""
        where = given["slot_mapping"]
        if "num_slices" in given:
            runs = where[:, : given["num_slices"][0]].T.tolist()
            slots = [slot for first, _, length in runs for slot in range(first, first + length)]
            places = [place for _, token, length in runs for place in range(token, token + length)]
        else:
            places = np.flatnonzero((where >= 0) & (where < self.layout.num_slots)).tolist()
            slots = where[places].tolist()
        keys, values = self.keys_and_values(call.arguments)
        self.hold_update(before, after, slots, keys[places], values[places])

    def keys_and_values(self, given: Mapping[str, Any]) -> tuple[Array, Array]:
        """The whole keys and values of which the arguments of an update are parts."""
        if "latents" not in given:
            return given["keys"].array, given["values"].array
        keys = replace(given["latents"], columns=None).array
        return keys, keys[..., : self.layout.dims[1]]

    def require_traced(self) -> None:
        """Leaves a step out where JAX cannot trace the backend's update, which then computes on the host."""
        layout = self.layout
        update = functools.partial(self.backend.names.get(layout.update), **layout.options)
        tokens = [np.zeros((TOKENS, layout.heads, size), np.float32) for size in layout.dims]
        slots, pages = np.full(TOKENS, -1, np.int32), self.backend.pages
        made = attempt(lambda: jax.eval_shape(update, pages, *layout.tokens(*tokens), slots))
        if isinstance(made.error, jax.errors.JAXTypeError):
            self.session.lacks.add(f"{layout.update} under jit")
            raise Nothing

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
        seed, slots = data.integer(0, 99), data.some(range(self.layout.num_slots), TOKENS, TOKENS)
        tokens = tokens_of(self.layout, seed)
        mapping = np.array(slots, np.int32)
        update = _donating(self.backend.names.get(self.layout.update), tuple(self.layout.options.items()))
        self.calls.append(
            f"jit({self.layout.update}, donate_argnums=0)(pages, keys, values, {slots})  # of seed {seed}"
        )
        self.require_traced()
        pages = jax.numpy.array(self.backend.pages)
        place = pages.unsafe_buffer_pointer()
        made = attempt(lambda: update(pages, *(part.array for part in tokens.values()), mapping))
        if made.error is not None:
            self.differ("CACHE-3", "a cache", str(made), made.error)
        written: Any = made.value
        self.check("CACHE-3", "the cache's memory", place, written.unsafe_buffer_pointer)
        self.hold_update(self.backend.pages, written, slots, *self.keys_and_values(tokens))

    @step("CACHE-3", when=lambda self: not self.layout.scaled and hasattr(self.backend.pages, "sharding"))
    def too_many_slots(self, _: Drawing) -> None:
        """A cache with more slots than 32 bits number is refused: nothing of it has to exist for that."""
        self.require_traced()
        layout = self.layout
        shape = replace(layout, num_pages=-(-(2**31) // layout.page_size)).shape
        dtype = self.parts(self.backend.pages)[0].dtype if layout.as_bits else np.dtype(layout.dtype)
        tokens = [np.zeros((TOKENS, layout.heads, size), np.float32) for size in layout.dims]
        slots = np.full(TOKENS, -1, np.int32)

        def act(side: Side) -> Any:
            update = functools.partial(side.names.get(layout.update), **layout.options)
            if side is self.spec:
                return update(np.broadcast_to(np.zeros((), dtype), shape), *layout.tokens(*tokens), slots)
            pages: Any = jax.ShapeDtypeStruct
            return jax.eval_shape(update, pages(shape, dtype), *layout.tokens(*tokens), slots)

        self.call(
            f"{layout.update}(<pages of {shape[0]} x {layout.page_size} slots>, keys, values, slots)", act, "CACHE-3"
        )

    # -- Copies -----------------------------------------------------------------------------------------------

    def hold_copy_pages(self, given: dict[str, Any], before: Any, after: Any) -> None:
        """Pairs of pages are copied, or some of their first slots; those that name no page are left out."""
        count, size = self.layout.num_pages, self.layout.page_size
        slots = given.get("num_slots", [size] * COPIES)
        wanted = [part.reshape(count, size, -1).copy() for part in self.parts(before)]
        for source, target, end in zip(given["sources"], given["destinations"], slots, strict=True):
            if 0 <= source < count and 0 <= target < count:
                for part in wanted:
                    part[target, : max(end, 0)] = part[source, : max(end, 0)]
        clause = "MAN-17" if "num_slots" in given else "MAN-13"
        for want, part in zip(wanted, self.parts(after), strict=True):
            self.check(clause, "pages that differ", [], functools.partial(_unlike, want.reshape(count, -1), part))

    @step("SWAP-2", when=lambda self: self.offered("export_pages") and self.offered("write_states"))
    def export_pages(self, source: Drawing) -> Calls:
        """Pages leave the device and come back: what is live bit for bit, dead slots, and pages that are none, zero."""
        export = self.drawn(CACHES["export_pages"], source)
        yield export
        targets = ints(*source.some(range(self.layout.num_pages), COPIES, COPIES))
        yield self.call_of("write_states", None, pages=Ref("pages"), page_ids=targets, states=Ref(export.number))

    def hold_export_pages(self, given: dict[str, Any], before: Any, after: Any) -> None:
        """What is live left bit for bit, all else as zeros."""
        ids, count, size = given["page_ids"], self.layout.num_pages, self.layout.page_size
        for old, new in zip(self.pages_of(before), self.pages_of(after), strict=True):
            live = (np.arange(size)[None] < given["num_slots"][:, None]) & (ids >= 0)[:, None] & (ids < count)[:, None]
            wanted = np.where(live[..., None], old[np.clip(ids, 0, count - 1)], 0)
            if np.any(new != wanted):
                place, slot = np.argwhere(np.any(new != wanted, axis=2))[0].tolist()
                kind = "as it was" if live[place, slot] else "zero"
                self.differ("SWAP-2", f"slot {slot} of block {place} {kind}", "something else")

    def hold_write_states(self, given: dict[str, Any], before: Any, after: Any) -> None:
        """The pages named are the block's, all others as they were."""
        named = given["page_ids"].tolist()
        blocks = self.pages_of(given["states"])
        for old, new, block in zip(self.pages_of(before), self.pages_of(after), blocks, strict=True):
            wanted = old.copy()
            wanted[named] = block
            if np.any(new != wanted):
                self.differ("SWAP-2", f"pages {named} are the block's, others as before", "other pages")

    def pages_of(self, pages: Any) -> list[Array]:
        """The bits of each part of some pages, `[pages, page size, ...]`."""
        parts = tuple(pages) if self.layout.scaled else (pages,)
        return [bits(self.layout.slots_first(part)).reshape(part.shape[0], self.layout.page_size, -1) for part in parts]

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


@functools.lru_cache(maxsize=64)
def _donating(update: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Any:
    """An update that is given its cache."""

    def given(pages: Any, keys: Any, values: Any, slots: Any) -> Any:
        return update(pages, keys, values, slots, **dict(options))

    return jax.jit(given, donate_argnums=0)


def _flushed(numbers: Array) -> Array:
    """How far off numbers are if those below the smallest normal one are taken for 0, as many processors do."""
    sizes = np.abs(numbers)
    off: Array = np.where(sizes < _SMALLEST, sizes, 0.0)
    return off


def _within(seen: Array, wanted: Array, bound: Array) -> Array:
    """Whether each number is near enough to what it should be; an infinite one only where it is the same."""
    with np.errstate(invalid="ignore"):
        near: Array = (seen == wanted) | (np.abs(seen - wanted) <= bound)
    return near


def _unlike(wanted: Array, part: Array) -> list[int]:
    """The pages that differ."""
    unlike: list[int] = np.flatnonzero(np.any(wanted != part.reshape(wanted.shape), axis=1)).tolist()
    return unlike
