"""The views machine: the cache's classes, from the page table to what is read back, on one device or several."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np
from hypothesis import strategies as st

from ..backends.levels import LEVELS
from ..backends.loading import Backend
from ..calls.arrays import CACHE, VIEW
from ..calls.datum import Call, New, Ref, Spelled
from ..calls.interfaces import BUILDS, plain_row
from ..calls.method import Method, Table
from ..calls.source import Source
from ..calls.spelling import NUMBERS, Spelling
from ..calls.table import TABLE
from ..calls.values import signed
from .arrays import FINE_BITS, SLIGHT, Array, Near, exact, shape_and_type, worst
from .base import Both, Side
from .cache import rounding
from .calling import Calling, Calls
from .draws import Drawing, some
from .layouts import Layout, takes_version
from .properties import operation, start, step
from .sides import unread

__all__ = ["Sharded", "Views"]

_ROWS, _WIDTH, _TOKENS, _PAGES = 3, 3, 12, 8

_MANY = 17
"""More pages than there are in a pool: an export may name a page twice. Backends pad few to 8 or 16."""

_FIELDS = (
    *("pages_tables", "context_lens", "query_start_loc", "num_seqs", "slot_mapping", "position_ids"),
    *("request_distribution", "num_kv_update_slices", "page_size", "version"),
)


_BUILDER = Table("builder", "MetadataBuilder", (plain_row("build", ("table", "num_computed", "num_new")),))
"""What makes the metadata of steps."""


class ViewMachine(Calling):
    """A view, a builder of metadata and tables on each side, ``table_0`` first; what every slot holds is known here.

    Attributes:
        layout: what the caches hold and how.
        shards: pools, each with a table of its own.
        holds: keys and values by (pool, slot).
    """

    needs: ClassVar[tuple[str, ...]] = (
        *("RaggedPagesCacheMetaData", "RaggedPagesCacheView", "MetadataBuilder", "PageTable", "AxisRules"),
    )
    tables: ClassVar[tuple[Table, ...]] = (VIEW, CACHE)
    layout: Layout
    shards: int = 1
    holds: dict[int, tuple[Array, Array]]

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: none is drawn alone."""
        return []

    @classmethod
    def row_of_call(cls, call: Call) -> tuple[Table, Method]:
        """See `Calling.row_of_call`."""
        held = {"cache": CACHE, CACHE.owner: CACHE, "builder": _BUILDER, "planner": _BUILDER}
        table = VIEW if call.target is None else held.get(str(call.target.of), VIEW)
        return table, table[call.method]

    def known_to_it(self, layout: Layout) -> Layout:
        """A layout, or the simplest where the backend has none such."""
        if takes_version(self.backend.names, layout.version):
            return layout
        self.session.lacks.add("kv_cache_update(version)")
        return replace(layout, version="v3")

    def build_views(self, layout: Layout, slices: bool, mesh: Any = None, shards: tuple[int, int] = (1, 1)) -> None:
        """Makes a view of zeros, and tables in which each row has its own pages."""
        self.layout, self.shards, self.holds = layout, shards[0], {}
        table = np.random.default_rng(layout.heads).permutation(np.arange(1, _PAGES))[: _ROWS * 2].reshape(_ROWS, 2)

        metadata = {
            "num_hidden_layers": 1,
            "max_model_length": _WIDTH * layout.page_size,
            "num_kv_heads": layout.heads,
            "k_headdim": layout.dims[0],
            "v_headdim": layout.dims[1],
            "page_size": layout.page_size,
            "num_pages": _PAGES,
            "version": layout.version,
            "_kvdtype_str": layout.dtype,
            "num_head_shards": shards[1],
            "num_page_shards": shards[0],
            "slot_scales": layout.scaled,
        }
        begun = {
            "mesh": mesh,
            "metadata": New("RaggedPagesCacheMetaData", (), tuple(metadata.items())),
            "layer_index": 0,
            "partition_manager": New("AxisRules"),
        }
        things = {"view": Call(Ref(VIEW.owner), "init", begun), "builder": self.builder([_TOKENS], slices)}
        sizes = dict(zip(BUILDS[TABLE.owner].arguments, (_ROWS, _WIDTH, _TOKENS), strict=True))

        def act(side: Side) -> dict[str, Any]:
            for name, value in things.items():
                self.make(side, name, value)
            for number in range(shards[0]):
                self.make(side, f"table_{number}", Call(None, TABLE.owner, sizes))
                for row, pages in enumerate(table.tolist()):
                    given = {"page_ids": pages, "row_idx": row}
                    self.perform(side, Call(Ref(f"table_{number}"), "add_row", given), TABLE["add_row"])
            return {}

        self.table = table
        line = f"view, builder = {layout}, slices={slices}, rows {table.tolist()}{f', {mesh}' if mesh else ''}"
        self.build(line, "CACHE-2", act)

    def builder(self, sizes: list[int] | None, slices: bool) -> New:
        """What makes the metadata of steps, padded to one of some sizes."""
        options = {"version": self.layout.version, "token_sizes": sizes, "slices": slices}
        return New("MetadataBuilder", (self.layout.page_size, _ROWS, _WIDTH, _TOKENS), tuple(options.items()))

    def step_by(self, side: Side, builder: str, number: int, computed: Any, new: Any) -> Any:
        """The metadata of a step of one pool, which one of a side's builders makes."""
        given = {"table": Ref(f"table_{number}"), "num_computed": computed, "num_new": new}
        return self.perform(side, Call(Ref(builder), "build", given), _BUILDER["build"])

    def draw_step(self, data: Drawing) -> list[tuple[list[int], list[int]]]:
        """Draws for each pool the computed and the new tokens of the first rows."""
        room, steps = 2 * self.layout.page_size, []
        for _ in range(self.shards):
            rows = data.draw(st.integers(1, _ROWS))
            new = [data.draw(st.integers(0, min(room, _TOKENS // _ROWS))) for _ in range(rows)]
            steps.append(([data.draw(st.integers(0, room - count)) for count in new], new))
        return steps

    def built(self, steps: list[tuple[list[int], list[int]]], spelling: Spelling) -> Both:
        """The metadata of a step, on both sides, its numbers spelled; of several pools one behind the other."""

        def act(side: Side) -> Any:
            spelled = [[Spelled(spelling, tuple(numbers)) for numbers in step] for step in steps]
            parts = [self.step_by(side, "builder", number, *step) for number, step in enumerate(spelled)]
            return parts[0] if len(parts) == 1 else side.names.get("RaggedPagesMetadata").stack(parts)

        shown = ", ".join(" + ".join(map(spelling.source, step)) for step in steps)
        return self.call(f"step = builder.build(table, {shown})", act, "TAB-7", self.described)

    def described(self, metadata: Any, _: Side) -> object:
        """What metadata shows, padding left out where it may hold anything (ATT-4)."""
        found = {}
        for name in _FIELDS:
            value = getattr(metadata, name)
            if name == "pages_tables":
                value = np.asarray(value)[:, :2]
            found[name] = value if value is None or isinstance(value, int | str) else np.asarray(value).tolist()
        return found

    def new_tokens(self, seed: int) -> tuple[Any, Any]:
        """Keys and values of a step of all pools; NaN where no token is."""
        count = self.shards * _TOKENS
        keys, values = (
            signed(seed + place, (count, self.layout.heads, size)) for place, size in enumerate(self.layout.dims)
        )
        return keys, values

    def note(self, steps: list[tuple[list[int], list[int]]], keys: Any, values: Any) -> None:
        """Notes what a step writes, and poisons the rows that belong to no token."""
        live = np.zeros(len(keys), bool)
        for pool, (computed, new) in enumerate(steps):
            token = pool * _TOKENS
            for row, (start_at, count) in enumerate(zip(computed, new, strict=True)):
                for position in range(start_at, start_at + count):
                    page, offset = divmod(position, self.layout.page_size)
                    place = (pool * _PAGES + int(self.table[row, page])) * self.layout.page_size + offset
                    self.holds[place] = (keys[token].copy(), values[token].copy())
                    live[token] = True
                    token += 1
        keys[~live], values[~live] = np.nan, np.nan

    def hold_pages(self, view: Any, moved: str = "") -> None:
        """Holds what the pages show against what was written, all else against zeros (CACHE-2, CACHE-3, CACHE-4).

        Args:
            view: the view that has the pages.
            moved: the clause of the call that moved pages before, if one did: wrong contents are charged to it.
        """
        clause = moved or ("CACHE-2" if exact(self.layout.dtype) else "CACHE-4")
        self.compared(clause)
        self.compared("CACHE-2")
        slots = sorted(self.holds)
        for place, (name, size) in enumerate(zip(("key_pages", "value_pages"), self.layout.dims, strict=True)):
            shape = (self.shards * _PAGES, self.layout.page_size, self.layout.heads, size)
            self.check("CACHE-2", f"shape of {name}", shape, functools.partial(_shape_of, view, name))
            seen = np.asarray(getattr(view, name)).astype(np.float64).reshape(-1, self.layout.heads, size)
            wanted, bound = np.zeros(seen.shape), np.zeros(seen.shape)
            if slots:
                wanted[slots] = np.array([self.holds[slot][place] for slot in slots])
            if exact(self.layout.dtype):
                wanted = wanted.astype(self.layout.dtype).astype(np.float64)
            else:
                bound = rounding(self.layout.dtype, wanted, np.abs(wanted).max(-1, keepdims=True) / self.layout.largest)
            off = worst(Near(wanted, bound), seen)
            if off is not None:
                # another number than what was written is no matter of rounding
                slight = not abs(seen[off] - wanted[off]) > SLIGHT * bound[off]
                where = "CACHE-3" if off[0] not in self.holds else clause if slight else "CACHE-2"
                at = f"{name} of slot {off[0]}, head {off[1]}, column {off[2]}: "
                self.differ(moved or where, f"{at}{wanted[off]:.7g} within {bound[off]:.3g}", f"{at}{seen[off]:.7g}")

    def write(self, data: Drawing) -> Both:
        """Writes a step's tokens through the view; returns the step's metadata."""
        steps, seed = self.draw_step(data), data.draw(st.integers(0, 99))
        step = self.built(steps, self.spelling(data, NUMBERS))
        keys, values = self.new_tokens(seed)
        self.note(steps, keys, values)
        flat = data.one_of([True, False])
        given = [part if flat else part.reshape(self.shards * 2, -1, *part.shape[1:]) for part in (keys, values)]
        made = self.call(
            f"view = view.concatenate_to_cache(keys, values, step)  # of seed {seed}, {given[0].shape}",
            lambda side: side.view.concatenate_to_cache(*given, self.result_on(side, step)),
            "CACHE-3",
            unread,
        )
        for side in (self.spec, self.backend):
            side.put({"view": self.result_on(side, made)})
        self.hold_pages(self.backend.view)
        return step

    def moves_pages(self) -> bool:
        """Whether the backend's caches give pages away and take them back."""
        if not self.offered(CACHE.owner):
            return False
        lacking = {"export_pages", "import_pages"} - set(dir(self.backend.names.get(CACHE.owner)))
        self.session.lacks |= {f"{CACHE.owner}.{name}" for name in lacking}
        return not lacking

    @step("SWAP-2", "CACHE-2", when=moves_pages)
    def take_away_and_back(self, data: Drawing) -> None:
        """Pages of every pool leave the device, and the first of them are written onto others of the same pool.

        As many leave as are named then, or more; on their way they are cut to those that were asked for, or stay as
        they came: a backend may pad them.
        """
        pages, size, count = range(_PAGES), self.layout.page_size, data.one_of([2, 6, _MANY])
        numbers = st.lists(st.integers(-1, _PAGES - 1), min_size=count, max_size=count)
        ids = [data.draw(numbers) for _ in range(self.shards)]
        live = [[data.one_of([size, size, size - 1, 0]) for _ in range(2)] * count for _ in range(self.shards)]
        live = [own[:count] for own in live]
        named = data.draw(st.integers(1, min(count, 6)))
        onto = [some(data, pages, named, named) for _ in range(self.shards)]
        onto = [[-1, *own[1:]] if data.rarely() else own for own in onto]
        self.move(ids, live, onto, data.one_of([False, True]), count < _MANY and data.one_of([False, True]))

    @operation
    def move(
        self, ids: list[list[int]], live: list[list[int]], onto: list[list[int]], cut: bool, is_there: bool = False
    ) -> None:
        """Pages of each pool, some of their slots, are exported, and the first of them imported into others.

        Args:
            ids: for each pool pages, -1 for none.
            live: for each of these its leading slots that are live.
            onto: for each pool the pages that are written, -1 for none.
            cut: whether the block is cut to the pages that were asked for, on the host.
            is_there: whether the numbers are handed over as arrays on the device, which a backend may not look at.
        """
        count, size, before = len(ids[0]), self.layout.page_size, dict(self.holds)
        for pool, places in enumerate(onto):
            for page, source, end in zip(places, ids[pool], live[pool], strict=False):
                for offset in range(size if page >= 0 else 0):
                    found = before.get((pool * _PAGES + source) * size + offset)
                    place = (pool * _PAGES + page) * size + offset
                    self.holds.pop(place, None)
                    if source >= 0 and offset < end and found is not None:
                        self.holds[place] = found
        given: list[Any] = [numbers if self.shards > 1 else numbers[0] for numbers in (ids, live, onto)]
        handed = [jax.numpy.asarray(numbers, np.int32) if is_there else numbers for numbers in given]

        def fitted(array: Any) -> Any:
            rows = np.asarray(array)
            return rows.reshape(self.shards, -1, *rows.shape[1:])[:, :count].reshape(-1, *rows.shape[1:])

        def act(side: Side) -> Any:
            cache = side.names.get(CACHE.owner)([side.view])
            block = cache.export_pages(*handed[:2])
            return cache.import_pages(handed[2], jax.tree.map(fitted, block) if cut else block).views[0]

        first = f"[:{count}]" if cut else ""
        shown = [f"jnp.array({numbers}, jnp.int32)" if is_there else str(numbers) for numbers in given]
        line = f"block = cache.export_pages({shown[0]}, {shown[1]}); cache.import_pages({shown[2]}, block{first})"
        made = self.call(line, act, "SWAP-2", unread)
        for side in (self.spec, self.backend):
            side.put({"view": self.result_on(side, made)})
        self.hold_pages(self.backend.view, "SWAP-2")

    def attend(self, step: Both, queries: Any, clause: str, **options: Any) -> None:
        """Attends to a step's tokens through both views, with some options of attention or with none."""
        shown = "".join(f", {name}={value if np.ndim(value) == 0 else '<signed>'}" for name, value in options.items())
        both = self.call(
            f"view.attend(queries, step{shown})",
            lambda side: side.view.attend(queries, self.result_on(side, step), **options),
            clause,
            shape_and_type,
        )
        largest = max((float(np.abs(value).max()) for _, value in self.holds.values()), default=0.0)
        right, seen = np.asarray(both.spec).astype(np.float64), np.asarray(both.backend)
        near = Near(right, np.full(right.shape, 2.0**-FINE_BITS * largest))
        place = worst(near, seen)
        if place is not None:
            self.differ(clause, *near.told(place, seen))


class Views(ViewMachine):
    """One device: every layout and type; what is written by slots, by slices, in one axis of tokens or in two."""

    name = "views"
    levels = frozenset(LEVELS)
    capability = "caches"
    examples, num_steps = 32, 8
    known: ClassVar[tuple[Layout, ...]] = (
        Layout(),
        Layout("v2", "bfloat16", heads=3, dims=(64, 64)),
        Layout("v3", "bfloat16", heads=3, dims=(64, 64), page_size=2),
        Layout("v3", "int8", heads=1, dims=(64, 64), scaled=True),
        Layout("v3", "bfloat16", heads=1, dims=(80, 16)),
        Layout("v2", "float8_e4m3fn", heads=3, dims=(40, 40), scaled=True),
        Layout("seq_on_lane", "bfloat16", heads=3, dims=(80, 16)),
        Layout("seq_on_lane", "int8", heads=2, dims=(24, 40), scaled=True),
    )

    @start("CACHE-1", "CACHE-2", layout=st.sampled_from((*known[:1] * 3, *known)), slices=st.booleans())
    def construct(self, layout: Layout, slices: bool) -> None:
        """A view of zeros; more often than others of the layout of which what it attends to is compared, too."""
        self.build_views(self.known_to_it(layout), slices)
        if exact(self.layout.dtype):
            self.put_arguments()

    # -- What is refused ------------------------------------------------------------------------------------

    def put_arguments(self) -> None:
        """Gives both sides what good calls are given, and a cache of a layer."""
        shape = (_TOKENS, 2 * self.layout.heads, self.layout.dims[0])
        key, value = self.new_tokens(0)
        step = {"table": Ref("table_0"), "num_computed": [0], "num_new": [1]}
        things: dict[str, Any] = {"queries": signed(7, shape), "key": key, "value": value}
        things |= {"rules": New("AxisRules"), "step": Call(Ref("builder"), "build", step)}
        if self.backend.names.offers(CACHE.owner):
            begun = {"mesh": None, "metadata": Ref("view", (".metadata",)), "partition_manager": Ref("rules")}
            things["cache"] = Call(Ref(CACHE.owner), "init_cache", begun)
            things["block"] = Call(Ref("cache"), "export_pages", {"page_ids": [1], "num_slots": [1]})
        line = "cache = RaggedPagesCache.init_cache(None, view.metadata, AxisRules())"
        self.build_things(line, "CACHE-1", things)

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: the methods of a view and of a cache."""
        return [row for table in cls.tables for row in table if row.spoils or row.weight]

    def target_of(self, table: Table, source: Source) -> Ref:
        """See `Calling.target_of`."""
        del source
        return Ref(table.name)

    def show(self, ref: Ref) -> str:
        """See `Calling.show`: everything by its name."""
        return str(ref)

    @step("SWAP-2", when=lambda self: exact(self.layout.dtype))
    def misuse(self, source: Drawing) -> Calls:
        """What is given to a view, or to a cache of a layer, is of a wrong type or shape."""
        for table in self.tables:
            for row in table if self.backend.names.offers(table.owner) else ():
                if row.spoils and hasattr(self.thing(table), row.name):
                    yield from self.each_spoilt(row, source)

    def thing(self, table: Table) -> Any:
        """The backend's object of an interface."""
        return self.backend.thing(Ref(table.name))

    @step("CACHE-2", "CACHE-3", "CACHE-4", "TAB-7", weight=3)
    def concatenate_to_cache(self, data: Drawing) -> None:
        """Writes a step's tokens and reads all keys and values back: those written are there, all others as before."""
        self.write(data)

    @step("ATT-1", "CACHE-2", "CACHE-3", "CACHE-4", "TAB-7", weight=3, when=lambda self: self.layout == Views.known[0])
    def write_and_attend(self, data: Drawing) -> None:
        """Writes a step's tokens and attends to them through the view."""
        step, heads = self.write(data), 2 * self.layout.heads
        options = {"sinks": signed(8, (heads,)), "window": 3, "soft_cap": 2.0, "scale": 0.3}
        queries = signed(7, (_TOKENS, heads, self.layout.dims[0]))
        self.attend(step, queries, "ATT-1", **(options if data.one_of([False, True, True]) else {}))

    @step("TAB-7")
    def plan(self, data: Drawing) -> None:
        """The metadata of a step padded to one of several sizes, with sequences that get one token, or none.

        A sequence may have one token more than its pages have room for, also one that gets none: that is refused.
        """
        computed, new, left = [], [], _TOKENS
        for _ in range(data.draw(st.integers(0, _ROWS))):
            most = min(2 * self.layout.page_size, left)
            new.append(min(data.one_of([1, 0, data.draw(st.integers(0, most))]), most))
            room = 2 * self.layout.page_size - new[-1]
            computed.append(min(data.draw(st.integers(0, room + 2)), room + 1))
            left -= new[-1]
        total = sum(new)
        several = sorted({max(total + data.one_of([0, 1, -1]), 1), 2, _TOKENS})
        self.plan_step(data.one_of([None, several, several]), data.one_of([False, True]), computed, new)

    @operation
    def plan_step(self, sizes: list[int] | None, slices: bool, computed: list[int], new: list[int]) -> None:
        """Builds a step's metadata by a builder of these sizes."""

        def act(side: Side) -> Any:
            self.make(side, "planner", self.builder(sizes, slices))
            return self.step_by(side, "planner", 0, computed, new)

        line = f"MetadataBuilder(..., token_sizes={sizes}, slices={slices}).build(table, {computed}, {new})"
        self.call(line, act, "TAB-7", self.described)

    @step("CACHE-2", "CACHE-4")
    def from_text(self, _: Drawing) -> None:
        """A view made from a view's text holds what it held."""

        def act(side: Side) -> Any:
            return type(side.view).from_json(side.view.to_json())

        made = self.call("view = RaggedPagesCacheView.from_json(view.to_json())", act, "CACHE-2", unread)
        for side in (self.spec, self.backend):
            side.put({"view": self.result_on(side, made)})
        self.hold_pages(self.backend.view)


class Sharded(ViewMachine):
    """A mesh of two by two devices: two pools, the KV heads of each on two devices."""

    name = "sharded"
    levels = frozenset(LEVELS)
    capability = "caches"
    examples, num_steps = 16, 8

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """See `Machine.missing`; four devices as well."""
        lacking = super().missing(backend)
        return lacking if lacking or jax.device_count() >= 4 else [f"4 devices (there are {jax.device_count()})"]

    @start("CACHE-2", "CACHE-5", version=st.sampled_from(["v3", "seq_on_lane"]))
    def construct(self, version: str) -> None:
        """A view of zeros, a part on each device."""
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("dp", "tp"))
        layout = self.known_to_it(Layout(self.session.one_of_few("version", version, 1), heads=4))
        self.build_views(layout, slices=False, mesh=mesh, shards=(2, 2))

    @step("CACHE-2", "CACHE-3", "CACHE-5", "TAB-7")
    def write_and_attend(self, data: Drawing) -> None:
        """Writes and attends on four devices: what one device would give, at every place of every pool."""
        step = self.write(data)
        self.compared("CACHE-5")
        self.attend(step, signed(7, (2 * _TOKENS, 8, self.layout.dims[0])), "CACHE-5")

    @step("CACHE-5", "TAB-7")
    def split_badly(self, data: Drawing) -> None:
        """A number of tokens that can't be split over the pools is refused, of queries and of what is written."""
        step, count = self.built(self.draw_step(data), NUMBERS[0]), 2 * _TOKENS - 1
        queries = signed(7, (count, 8, self.layout.dims[0]))
        keys, values = (part[:count] for part in self.new_tokens(7))
        acts: dict[str, Callable[[Side], Any]] = {
            "attend(queries, step)": lambda side: side.view.attend(queries, self.result_on(side, step)),
            "concatenate_to_cache(keys, values, step)": lambda side: side.view.concatenate_to_cache(
                keys, values, self.result_on(side, step)
            ),
        }
        for line, act in acts.items():
            self.call(f"view.{line}  # of {count} tokens", act, "CACHE-5", unread)


def _shape_of(view: Any, name: str) -> object:
    return tuple(getattr(view, name).shape)
