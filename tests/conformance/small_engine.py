"""A small engine that makes all kinds of calls at random: what recordings and lockstep runs are made of in tests."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvproof.spec.declarations import (
    CacheGroupSpec,
    CacheSalt,
    EngineRequestStatus,
    ExtraKey,
    FullAttentionSpec,
    LoraAdapter,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)

__all__ = ["GROUPS", "SALT", "SmallEngine", "full"]

SALT = "a tenant's secret"


def full(page_size: int) -> CacheGroupSpec:
    return CacheGroupSpec(FullAttentionSpec(page_size, 1, 8, "float32"), layer_names=["layer.0"])


GROUPS: dict[str, list[CacheGroupSpec]] = {
    "full": [full(2)],
    "window": [full(2), CacheGroupSpec(SlidingWindowSpec(2, 1, 8, "float32", 4))],
    "states": [full(2), CacheGroupSpec(MambaSpec(2, ((2,),), ("float32",), "align"))],
}


class SmallEngine:
    """Serves made-up requests, and calls much else beside.

    Args:
        holder: the backend's public names.
        seed: of everything that is drawn.
        groups: the cache groups.
        num_pages: pages of the pool.
        wrap: what becomes of the manager and the tables: recorded, or themselves.
    """

    def __init__(
        self,
        holder: Any,
        seed: int,
        groups: Sequence[CacheGroupSpec] = tuple(GROUPS["full"]),
        num_pages: int = 12,
        wrap: Callable[[Any], Any] = lambda made: made,
    ) -> None:
        self.draw = random.Random(seed)
        sizes = [group.kv_cache_spec.page_size for group in groups]
        manager = holder.CacheManager(
            num_pages, list(groups), 24, hash_seed=b"seed", enable_events=True, max_pinned_pages=3
        )
        self.manager = wrap(manager)
        self.tables = wrap(holder.MultiGroupPageTable(4, 24, 32, sizes))
        self.live: list[Request] = []
        self.names = 0
        self.has_states = any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            act = self.draw.choice([self.admit, self.decode, self.decode, self.batch, self.leave, self.look, self.err])
            act()
        for _ in range(len(self.live)):
            self.leave()

    # -- What engines do ----------------------------------------------------------------------------

    def admit(self) -> None:
        if len(self.live) == 4:
            return
        draw = self.draw
        tokens = [draw.choice([7, 8]) for _ in range(draw.randint(2, 9))]
        keys: tuple[ExtraKey, ...] = draw.choice([(), (), (CacheSalt(SALT),), (LoraAdapter("adapter"),)])
        self.names += 1
        request = Request(
            f"r{self.names % 6}" if not self.is_live(f"r{self.names % 6}") else f"x{self.names}", tokens, keys
        )
        hits, found = self.manager.get_computed_pages(request)
        given = self.manager.allocate_slots(request, len(tokens) - found, found, hits)
        if given is None:
            self.manager.free_page_hashes(request)
            return
        request.num_computed_tokens = len(tokens)
        request.status = EngineRequestStatus.RUNNING
        self.live.append(request)
        self.fill_rows()

    def is_live(self, name: str) -> bool:
        return any(request.request_id == name for request in self.live)

    def fill_rows(self) -> None:
        for row in range(4):
            if row < len(self.live):
                self.tables.add_row(self.manager.get_page_ids(self.live[row].request_id), row)
            else:
                self.tables.clear_row(row)

    def decode(self) -> None:
        for row, request in enumerate(self.live):
            if request.num_tokens >= 22:
                continue
            request.append(self.draw.choice([7, 8, 9]))
            ahead = 0 if self.has_states else self.draw.choice([0, 0, 2])
            given = self.manager.allocate_slots(
                request, request.num_tokens - request.num_computed_tokens, 0, None, ahead
            )
            if given is None:
                continue
            request.num_computed_tokens = request.num_tokens
            self.tables.append_row(given.get_page_ids(), row)
        self.tables.commit(len(self.live))
        self.manager.take_page_copies()

    def batch(self) -> None:
        going = [request for request in self.live if request.num_tokens < 22]
        if not going:
            return
        self.fill_rows()
        for request in going:
            request.append(self.draw.choice([7, 8]))
        slots = np.array([self.manager.slot_of(request.request_id) for request in going])
        computed = np.array([request.num_computed_tokens for request in going])
        new = np.array([request.num_tokens for request in going]) - computed
        rows = np.array([self.live.index(request) for request in going])
        batch = self.manager.allocate_slots_batch(slots, computed, new, tables=self.tables, rows=rows)
        for request, granted in zip(going, batch.granted.tolist(), strict=True):
            if granted:
                request.num_computed_tokens = request.num_tokens
        self.tables.commit(4)

    def leave(self) -> None:
        if self.live:
            request = self.live.pop(self.draw.randrange(len(self.live)))
            self.manager.free(request, self.draw.choice([None, None, request.num_tokens // 2]))
            if self.draw.random() < 0.8:
                self.manager.free_page_hashes(request)
            self.fill_rows()

    def look(self) -> None:
        draw, pool = self.draw, self.manager.page_pool
        draw.choice(
            [
                pool.get_num_free_pages,
                lambda: self.manager.usage,
                self.manager.take_events,
                lambda: self.manager.counters,
                self.common,
                self.borrow,
                lambda: pool.evict_pages([draw.randint(1, 5)]) if not pool.num_pinned_pages else None,
                self.manager.reset_prefix_cache,
                self.pin,
                self.map,
            ]
        )()

    def common(self) -> None:
        if self.live:
            self.manager.get_num_common_prefix_pages(self.live[0], len(self.live))

    def borrow(self) -> None:
        pool = self.manager.page_pool
        if pool.get_num_free_pages() > 2:
            pages = pool.get_new_pages(2)
            pool.touch([pages])
            pool.free_pages(iter(pages))
            pool.free_pages(pages)

    def pin(self) -> None:
        if self.live:
            try:
                pinned = self.manager.pin_prefix(self.live[0], 2)
            except ValueError:
                return
            if pinned is not None:
                self.manager.unpin_prefix(pinned.pin_id)

    def map(self) -> None:
        if self.live and len(self.manager.get_page_ids(self.live[0].request_id)[0]):
            self.fill_rows()
            self.tables[0].slot_mapping([0], [0], 2)

    def err(self) -> None:
        """Calls that are refused."""
        bad: list[Callable[[], Any]] = [
            lambda: self.manager.allocate_slots(self.live[0], 0),
            lambda: self.manager.free("no request"),
            lambda: self.manager.page_pool.get_new_pages(99),
            lambda: self.tables.append_row([[1] * 13] * len(self.tables), 0),
            lambda: self.tables.clear_row(-1),
            lambda: self.manager.unpin_prefix(77),
        ]
        try:
            self.draw.choice(bad)()
        except (TypeError, ValueError, IndexError):
            return
