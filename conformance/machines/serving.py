"""The serving machine: manager, page table, cache and attention together, as an engine uses them, step by step."""

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvproof.spec.declarations import Request

from ..calls.datum import Call, Ref, Saying
from ..calls.manager import MANAGER
from ..calls.method import Method
from ..calls.readings import page_views
from ..calls.spelling import request_as, request_source
from ..calls.table import TABLE
from ..calls.values import signed
from .arrays import FINE_BITS, Array, Near, worst
from .base import Nothing, Side
from .calling import Calling
from .draws import Drawing
from .layouts import Layout
from .properties import start, step
from .ragged import SETUPS, Setup
from .sides import unread
from .worlds import Group

__all__ = ["Serving"]


Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Kit:
    """What serves: a cache, how attention reads it, and the cache group that the manager plans for.

    Attributes:
        setup: the cache and the attention.
        group: the cache group.
    """

    setup: Setup
    group: Group

    @property
    def max_model_len(self) -> int:
        """The most tokens of a request."""
        return self.setup.most_keys

    def __str__(self) -> str:
        return f"{self.setup.layout}, {self.group}"


KITS = {
    "full": Kit(SETUPS["plain"], Group("full", 4)),
    "window": Kit(SETUPS["window"], Group("window", 3, 3)),
}
"""What serves, by name: with programs that the attention machine has as well; the first is the simplest."""


@dataclass
class Served:
    """A request that runs, in the row of its place.

    Attributes:
        request: the request.
        computed: its tokens that the cache holds.
        planned: its tokens that this step adds.
    """

    request: Request
    computed: int = 0
    planned: int = 0

    @property
    def tokens(self) -> Prefix:
        """All of its tokens."""
        return tuple(map(int, self.request.all_token_ids))


@functools.lru_cache(maxsize=4096)
def embedded(prefix: Prefix, kind: str, shape: tuple[int, ...], dtype: str) -> Array:
    """What a model makes of a token after all that stand before it: numbers of both signs, always the same."""
    return signed(zlib.crc32(repr((prefix, kind)).encode()), shape, dtype)


def rows_of(table: Any) -> Array:
    """What a table shows, in memory of its own."""
    return np.array(np.asarray(table))


_MANAGER, _TABLE = Ref("manager"), Ref("table")
_IDS = ("a", "b", "c", "d")
_ALPHABET = (0, 1)


class Serving(Calling):
    """Prompts arrive and hit, several go on at a time, share pages, change rows, go; pages are used again.

    A manager, a page table and a cache, the backend's beside the specification's, and the requests by their ids. What
    attention gives is held against dense attention over the requests' own tokens, independent of pages and tables; what
    nobody may read is NaN before every step.

    Attributes:
        kit: what serves.
        running: who runs, by row.
        holds: for each slot that anybody may read the tokens up to the one whose key and value it holds.
    """

    name = "serving"
    capability = "kernels"
    needs = ("CacheManager", "PageTable", "kv_cache_update", "ragged_paged_attention")
    examples, num_steps = 30, 14
    always = frozenset({"R1"})
    tables = (MANAGER, TABLE)
    records_calls = False
    kit: Kit
    running: list[Served]
    holds: dict[int, Prefix]

    @start("MAN-2", kit=st.sampled_from(list(KITS)), fused=st.booleans(), seed=st.integers(0, 3))
    def construct(self, kit: str, fused: bool, seed: int) -> None:
        """A manager, a table and a cache full of NaN; tokens are written apart or by the call that attends."""
        self.kit, self.running, self.holds = KITS[kit], [], {}
        self.fused = fused and kit == "full" and self.backend.names.offers("fused_ragged_paged_attention")
        self.text = np.random.default_rng(seed).integers(0, 2, self.kit.max_model_len).tolist()
        setup, layout = self.kit.setup, self.layout
        options = self.options_taken("CacheManager", {"hash_seed": b"kvproof"})

        def act(side: Side) -> dict[str, Any]:
            groups = [self.kit.group.declared(0, side.names, self.spec.names)]
            flags = self.backend.names.flags("CacheManager", True)
            manager = side.names.get("CacheManager")(
                layout.num_pages, groups, self.kit.max_model_len, *flags, **options
            )
            table = side.names.get("PageTable")(setup.num_seqs, setup.row, setup.num_tokens)
            pages = page_views(manager.page_pool, "queue" not in side.names.lacks)
            return {"manager": manager, "pages": pages, "table": table, "cache": layout.empty()}

        self.build(f"manager, table, cache = {self.kit}", "MAN-2", act)

    # -- What is there -------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The cache."""
        return self.kit.setup.layout

    def keys_values(self, prefixes: list[Prefix]) -> tuple[Array, Array]:
        """The keys `[n, H, D]` and values `[n, H, Dv]` of tokens, in the cache's type."""
        layout = self.layout
        made = [
            np.array([embedded(prefix, kind, (layout.heads, size), layout.dtype) for prefix in prefixes])
            for kind, size in zip(("key", "value"), layout.dims, strict=True)
        ]
        empty = [np.zeros((0, layout.heads, size), layout.dtype) for size in layout.dims]
        return (made[0], made[1]) if prefixes else (empty[0], empty[1])

    def queries(self, prefixes: list[Prefix]) -> Array:
        """The queries `[num_tokens, Hq, D]` of a step; NaN past its tokens (ATT-4)."""
        setup = self.kit.setup
        shape = setup.query_heads, setup.layout.dims[0]
        rows = np.full((setup.num_tokens, *shape), np.nan, setup.queries)
        for row, prefix in enumerate(prefixes):
            rows[row] = embedded(prefix, "query", shape, setup.queries)
        return rows

    def dense(self, prefix: Prefix) -> tuple[Array, float]:
        """Dense attention of a request's token over all before it, in float64, and the largest value that it reads.

        Args:
            prefix: the request's tokens up to that one.
        """
        setup, end = self.kit.setup, len(prefix)
        first = max(end - setup.options.get("window", end), 0)
        keys, values = (
            part.astype(np.float64) for part in self.keys_values([prefix[: n + 1] for n in range(first, end)])
        )
        shape = setup.query_heads, setup.layout.dims[0]
        query = embedded(prefix, "query", shape, setup.queries).astype(np.float64)
        grouped = query.reshape(setup.layout.heads, setup.group, -1)
        scale = setup.options.get("scale", setup.layout.dims[0] ** -0.5)
        scores = np.einsum("hgd,nhd->hgn", grouped, keys) * scale
        if "soft_cap" in setup.options:
            scores = setup.options["soft_cap"] * np.tanh(scores / setup.options["soft_cap"])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hgn,nhd->hgd", weights, values)
        return out.reshape(setup.query_heads, -1), float(np.abs(values).max())

    # -- What the cache holds -----------------------------------------------------------------------------------

    def page_ids(self, side: Side, name: str) -> list[int]:
        """The pages of a request, null pages for those it gave back."""
        return [int(page) for page in side.manager.get_page_ids(name)[0]]

    def slot(self, pages: list[int], position: int) -> int:
        """Where a request's token stands."""
        page, offset = divmod(position, self.layout.page_size)
        return pages[page] * self.layout.page_size + offset

    def forget(self, pages: set[int]) -> None:
        """What pages held is not read any more."""
        for slot in [slot for slot in self.holds if slot // self.layout.page_size in pages]:
            del self.holds[slot]

    def scrub(self) -> None:
        """Poisons whatever nobody may read: pages of nobody that no look-up finds, and slots not written yet."""
        held = {page for served in self.running for page in self.page_ids(self.spec, served.request.request_id)}
        kept = held | {page.page_id for page in self.spec.pages.values() if page.page_hash is not None}
        self.forget({slot // self.layout.page_size for slot in self.holds} - kept)
        pages = np.array(np.asarray(self.backend.cache))
        poison = np.asarray(self.layout.empty()).reshape(self.layout.num_slots, -1)
        dead = np.setdiff1d(np.arange(self.layout.num_slots), np.array(sorted(self.holds), np.int64))
        pages.reshape(self.layout.num_slots, -1)[dead] = poison[dead]
        self.backend.put({"cache": pages})

    def lost(self) -> list[int]:
        """The slots in which the backend's cache holds something else than it must."""
        slots = sorted(self.holds)
        if not slots:
            return []
        wanted = self.keys_values([self.holds[slot] for slot in slots])
        found = self.layout.read(self.backend.cache)
        wrong = np.zeros(len(slots), bool)
        for want, seen in zip(wanted, found, strict=True):
            wrong |= np.any(want.astype(np.float64) != seen[slots], axis=(1, 2))
        return [slot for slot, off in zip(slots, wrong, strict=True) if off]

    def strange(self, served: Served) -> list[int]:
        """The places whose page, by what is known, holds another request's content (R2)."""
        name, tokens = served.request.request_id, served.tokens
        pages = self.page_ids(self.backend, name)
        first = max(served.computed - self.kit.setup.options.get("window", served.computed + 1) + 1, 0)
        positions = range(first, served.computed)
        wrong = [p for p in positions if self.holds.get(self.slot(pages, p)) != tokens[: p + 1]]
        return sorted({position // self.layout.page_size for position in wrong})

    # -- Steps --------------------------------------------------------------------------------------------------

    @step(
        *("ATT-1", "ATT-3", "ATT-4", "ATT-5", "ATT-6", "CACHE-2", "CACHE-3"),
        *("MAN-1", "MAN-2", "R2", "TAB-2", "TAB-4"),
        weight=6,
    )
    def serve(self, data: Drawing) -> None:
        """Requests go on and come, in chunks, hitting what others write in this step; all are written, then read."""
        left = self.kit.setup.num_tokens
        for row, served in enumerate(self.running):
            served.planned = 0
            left -= self.go_on(data, row, served, left)
        while left and len(self.running) < self.kit.setup.num_seqs and data.one_of([True, True, False]):
            admitted = self.admit(data, left)
            if admitted is None:
                break
            left -= admitted
        self.dispatch()

    @step("MAN-5", "TAB-2", "TAB-3", when=lambda self: self.running)
    def free(self, data: Drawing) -> None:
        """A request goes; the last row takes its place."""
        row, last = data.draw(st.integers(0, len(self.running) - 1)), len(self.running) - 1
        self.leave(row, last)

    @step("TAB-3", when=lambda self: len(self.running) > 1)
    def swap_rows(self, data: Drawing) -> None:
        """Two requests change rows."""
        one, other = data.draw(st.permutations(range(len(self.running))))[:2]
        self.make_call(self.call_of("swap_row", _TABLE, src=one, tgt=other))
        self.running[one], self.running[other] = self.running[other], self.running[one]

    @step("MAN-13", when=lambda self: self.running and self.backend.names.offers("copy_pages"))
    def move_page(self, data: Drawing) -> None:
        """A page is copied onto one that holds nothing, and read there: the old one may hold anything then."""
        held = sorted({slot // self.layout.page_size for slot in self.holds})
        unused = sorted(set(range(1, self.layout.num_pages)) - set(held))
        if not held or not unused:
            raise Nothing
        source, target = data.one_of(held), data.one_of(unused)
        pairs = [np.array([page, -1], np.int32) for page in (source, target)]

        def act(side: Side) -> Any:
            return None if side is self.spec else np.array(side.names.get("copy_pages")(side.cache, *pairs))

        copied = self.call(f"cache = copy_pages(cache, [{source}, -1], [{target}, -1])", act, "MAN-13", unread)
        size = self.layout.page_size
        before = self.backend.cache
        self.backend.put({"cache": copied.backend})
        moved = {target * size + slot % size: tokens for slot, tokens in self.holds.items() if slot // size == source}
        self.holds |= moved
        self.check("MAN-13", "slots that do not hold what they did", [], self.lost)
        self.backend.put({"cache": before})
        self.forget({target})

    # -- Requests -------------------------------------------------------------------------------------------------

    def go_on(self, data: Drawing, row: int, served: Served, left: int) -> int:
        """Gives a running request slots for its next tokens, its own or a new one; returns how many."""
        request, name = served.request, served.request.request_id
        if served.computed == request.num_tokens and request.num_tokens < self.kit.max_model_len:
            token = data.one_of(_ALPHABET)
            request.append(token)
            self.calls.append(f"{name} grows by {token}")
        wanted = min(request.num_tokens - served.computed, left, data.one_of([99, 99, 1, 2, 0]))
        if wanted < 1:
            return 0
        new_pages = self.allocate(served, wanted)
        if new_pages is None:
            return 0
        served.planned = wanted
        self.make_call(self.call_of("append_row", _TABLE, page_ids=new_pages, row_idx=row))
        return wanted

    def admit(self, data: Drawing, left: int) -> int | None:
        """Admits a request, whose prompt begins like others; returns how many tokens it computes; None: no room."""
        name = next(name for name in _IDS if name not in {served.request.request_id for served in self.running})
        length = data.draw(st.integers(1, self.kit.max_model_len))
        tokens = self.text[:length]
        if data.one_of([False, False, True]):
            place = data.draw(st.integers(0, length - 1))
            tokens[place] = 1 - tokens[place]
        made = self.token_spelling(data), name, tokens
        served = Served(request_as(*made))
        self.calls.append(f"{name} = {request_source(*made)}")
        for side in (self.spec, self.backend):
            side.put({name: served.request})
        look_up = self.call_of("get_computed_pages", _MANAGER, request=Ref(name))
        pages, served.computed = Ref(look_up.number, (0,)), self.make_call(look_up).spec[1]
        wanted = min(length - served.computed, left, data.one_of([99, 99, self.layout.page_size, 1]))
        hits = {"num_new_computed_tokens": served.computed, "new_computed_pages": pages}
        if self.allocate(served, wanted, **hits) is None:
            return None
        served.planned = wanted
        self.running.append(served)
        held = self.call_of("get_page_ids", _MANAGER, request_id=name)
        ids = [Ref(held.number, (0, place)) for place in range(len(self.make_call(held).spec[0]))]
        self.make_call(self.call_of("add_row", _TABLE, page_ids=ids, row_idx=len(self.running) - 1))
        return wanted

    def allocate(self, served: Served, new: int, **hits: Any) -> list[Ref] | None:
        """Gives a request slots on both sides; what its new pages held is not read any more.

        Returns:
            The ids of the new pages; None where there is no room.
        """
        computed = ("num_computed_tokens", 0 if hits else served.computed)
        asking = Saying(Ref(served.request.request_id), (computed,))
        call = self.call_of("allocate_slots", _MANAGER, request=asking, num_new_tokens=new, **hits)
        allocated = self.make_call(call).spec
        if allocated is None:
            return None
        pages = allocated.pages[0]
        self.forget({int(page.page_id) for page in pages} - {0})
        return [Ref(call.number, (".pages", 0, place, ".page_id")) for place in range(len(pages))]

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """See `Calling.perform`: of a request that goes nobody asks which of its pages were withdrawn."""
        given = super().perform(side, call, row)
        return None if row.name == "free" else given

    def leave(self, row: int, last: int) -> None:
        """Frees the request of a row, into which the last row is moved."""
        self.make_call(self.call_of("free", _MANAGER, request=Ref(self.running[row].request.request_id)))
        if row != last:
            self.make_call(self.call_of("move_row", _TABLE, src=last, tgt=row))
        self.make_call(self.call_of("add_row", _TABLE, page_ids=[], row_idx=last))
        self.running[row] = self.running[last]
        self.running.pop()

    # -- The device -----------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Writes the step's tokens and attends; holds cache and results against what they must be."""
        prefixes, slots, starts = [], [], [0]
        for served in self.running:
            pages = self.page_ids(self.spec, served.request.request_id)
            for position in range(served.computed, served.computed + served.planned):
                prefixes.append(served.tokens[: position + 1])
                slots.append(self.slot(pages, position))
            starts.append(len(slots))
        self.scrub()
        self.holds |= dict(zip(slots, prefixes, strict=True))
        self.compared("R2")
        for served in self.running:
            places = self.strange(served)
            if places:
                expected = f"pages of {served.request.request_id} that hold its own tokens"
                self.differ("R2", expected, f"others at places {places}")
        self.make_call(self.call_of("commit", _TABLE, num_reqs=len(self.running)))
        shown = [(served.request.request_id, served.computed, served.planned) for served in self.running]
        way = "fused_ragged_paged_attention" if self.fused else "kv_cache_update, ragged_paged_attention"
        act = functools.partial(self.attend, prefixes, slots, starts)
        made = self.call(f"{way}  # (request, computed, new): {shown}", act, "ATT-1", unread)
        out, cache = made.backend
        self.backend.put({"cache": cache})
        for clause in ("ATT-3", "ATT-4", "ATT-6", "CACHE-2", *(["ATT-5"] if self.fused else [])):
            self.compared(clause)
        self.check("CACHE-3", "slots that do not hold what they must", [], self.lost)
        self.judge(prefixes, out)
        for served in self.running:
            served.computed += served.planned
            served.planned = 0

    def attend(self, prefixes: list[Prefix], slots: list[int], starts: list[int], side: Side) -> Any:
        """Writes the step's tokens and attends on the backend's side; nothing on the specification's.

        Args:
            prefixes: of each token of the step all tokens up to it.
            slots: where each goes.
            starts: where the tokens of each request start, and the end.
            side: the side.

        Returns:
            The results and the cache.
        """
        if side is self.spec:
            return None
        setup, count = self.kit.setup, len(self.running)
        mapping = np.full(setup.num_tokens, -1, np.int32)
        mapping[: len(slots)] = slots
        lengths = np.full(setup.num_seqs, -1, np.int32)
        lengths[:count] = [served.computed + served.planned for served in self.running]
        offsets = np.full(setup.num_seqs + 1, 2**31 - 1, np.int32)
        offsets[: count + 1] = starts
        queries, (keys, values) = self.queries(prefixes), map(self.padded, self.keys_values(prefixes))
        cache, batch = side.cache, (lengths, side.table.get_device_tensor(), offsets, np.array([count], np.int32))
        if self.fused:
            attend = side.names.get("fused_ragged_paged_attention")
            out, cache = attend(queries, keys, values, cache, *batch, **setup.keywords)
        else:
            update = side.names.get("kv_cache_update")
            cache = update(cache, keys, values, mapping, **setup.layout.options)
            out = side.names.get("ragged_paged_attention")(queries, cache, *batch, **setup.keywords)
        return np.asarray(out), np.array(np.asarray(cache))

    def padded(self, rows: Array) -> Array:
        """Keys or values of a step, NaN past its tokens (ATT-4)."""
        setup = self.kit.setup
        nothing = np.full((setup.num_tokens - len(rows), *rows.shape[1:]), np.nan, setup.queries)
        return np.concatenate([rows.astype(setup.queries), nothing])

    def judge(self, prefixes: list[Any], out: Any) -> None:
        """Holds results against dense attention over the requests' own tokens (ATT-6)."""
        setup = self.kit.setup
        right = np.zeros((setup.num_tokens, setup.query_heads, self.layout.dims[1]))
        tolerance = np.zeros(right.shape)
        for row, prefix in enumerate(prefixes):
            right[row], largest = self.dense(prefix)
            fine = setup.queries == "float32"
            tolerance[row] = 2.0**-FINE_BITS * largest if fine else 2.0**-8 * (np.abs(right[row]) + largest)
        if out.shape != right.shape:
            self.differ("ATT-1", f"a result of shape {right.shape}", f"{out.shape}")
        near = Near(right, tolerance)
        place = worst(near, out)
        if place is None:
            return
        self.differ(self.blame(prefixes, near, out, place), *near.told(place, out))

    def blame(self, prefixes: list[Any], near: Near, out: Any, place: tuple[int, ...]) -> str:
        """The clause by which a result is wrong, the cache holding what it must."""
        rows = len(self.running)
        host, device = (
            rows_of(read())[:rows] for read in (self.backend.table.get_cpu_tensor, self.backend.table.get_device_tensor)
        )
        if not np.array_equal(host, device):
            return "TAB-4"
        if place[0] >= len(prefixes):
            return "ATT-4"
        if np.isnan(out[place]):
            return "ATT-3"
        error = abs(float(out[place]) - near.right[place])
        return "ATT-6" if error < 64 * near.tolerance[place] else "ATT-1"
