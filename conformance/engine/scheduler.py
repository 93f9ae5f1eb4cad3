"""Who computes how many tokens in a step: continuous batching in order of urgency (ENG-2). Nothing here is on a device.

All requests stand in one queue by urgency: higher priority first, then who came first. A step goes through it from
the front. Who has no room takes it from the least urgent one that runs; who still has none waits, and nobody behind
overtakes. So the first of the queue always goes on, and everybody is first one day (ENG-2).
"""

from bisect import insort
from dataclasses import dataclass, field
from itertools import takewhile
from math import lcm
from typing import Any

import numpy as np

from kvproof.spec.arguments import refusal
from kvproof.spec.declarations import CacheGroupSpec, EngineRequestStatus, MambaSpec, Request

from .groups import most_pages
from .sampler import Sampling

__all__ = ["Chunk", "Limits", "Plan", "Scheduler", "Served"]


@dataclass(eq=False)
class Served:
    """A request as the engine knows it.

    Attributes:
        request: what the manager sees of it.
        num_prompt: tokens of the prompt.
        max_tokens: how many are generated at most.
        sampling: how they are drawn.
        priority: the higher, the sooner it is served.
        arrival: how many came before it.
        row: its row in the tables while it runs; -1 while it waits.
        slot: the manager's number for it while it runs.
        preemptions: how often it gave way.
    """

    request: Request
    num_prompt: int
    max_tokens: int
    sampling: Sampling
    priority: int
    arrival: int
    row: int = -1
    slot: int = -1
    preemptions: int = 0

    @property
    def urgency(self) -> tuple[int, int]:
        """What the queue is ordered by."""
        return -self.priority, self.arrival

    @property
    def is_running(self) -> bool:
        """Whether it holds pages and a row."""
        return self.row >= 0

    @property
    def num_left(self) -> int:
        """Its tokens that are known and not computed yet."""
        return self.request.num_tokens - self.request.num_computed_tokens

    @property
    def num_cached(self) -> int:
        """How many tokens are computed until its end: all but the last one that is generated."""
        return self.num_prompt + self.max_tokens - 1


@dataclass(frozen=True)
class Chunk:
    """What a request computes in a step.

    Attributes:
        served: the request.
        start: its first token that is computed.
        count: how many are.
    """

    served: Served
    start: int
    count: int

    @property
    def end(self) -> int:
        """The first token that is not computed any more."""
        return self.start + self.count


@dataclass(frozen=True)
class Plan:
    """A step.

    Attributes:
        chunks: who computes what; nobody twice.
        preempted: who gave way, in that order.
    """

    chunks: tuple[Chunk, ...]
    preempted: tuple[Served, ...]


@dataclass(frozen=True)
class Limits:
    """What a scheduler keeps to.

    Attributes:
        groups: the cache groups.
        num_pages: pages of the pool, the null page included.
        max_model_len: the most tokens of a request.
        max_num_seqs: the most requests that run at a time: rows of the tables.
        max_num_batched_tokens: the most tokens of a step.
        enable_caching: whether prefixes are found.
    """

    groups: tuple[CacheGroupSpec, ...]
    num_pages: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_caching: bool = True

    @property
    def has_states(self) -> bool:
        """Whether a group keeps states."""
        return any(isinstance(group.kv_cache_spec, MambaSpec) for group in self.groups)

    @property
    def boundary(self) -> int:
        """Hits are multiples of so many tokens: the least common multiple of the page sizes (MAN-1)."""
        return lcm(*(group.kv_cache_spec.page_size for group in self.groups))


@dataclass
class _Step:
    """What a step has come to so far."""

    budget: int
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Served] = field(default_factory=list)
    scheduled: set[Served] = field(default_factory=set)

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.scheduled.add(chunk.served)
        self.budget -= chunk.count


class Scheduler:
    """Decides about one pool: its manager, its tables, its queue.

    A backend may offer a class of this name with these methods, and the engine then takes it in place of this one.

    Args:
        manager: the pool's ``CacheManager``; the scheduler alone calls it.
        tables: the ``MultiGroupPageTable`` whose rows the scheduler fills; the runner reads it.
        limits: what it keeps to.

    Attributes:
        queue: all unfinished requests, the most urgent first.
    """

    def __init__(self, manager: Any, tables: Any, limits: Limits) -> None:
        self.manager, self.tables, self.limits = manager, tables, limits
        self.queue: list[Served] = []
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        # A state is there when a step has ended; whoever finds it in the same step would copy it too early (MAN-13).
        self._publishes_late = limits.has_states
        self._batches = hasattr(manager, "allocate_slots_batch") and hasattr(manager, "slot_of")

    # -- Coming and going -----------------------------------------------------------------------------------------

    def add(self, served: Served) -> None:
        """Takes a request into the queue (ENG-2). O(requests + tokens).

        Raises:
            ValueError: it could never be served to its end: the pool is too small, however little else is in it.
        """
        self.require_room(served)
        insort(self.queue, served, key=lambda other: other.urgency)

    def require_room(self, served: Served) -> None:
        """Refuses a request that can never fit the pool (ENG-2).

        Raises:
            ValueError: so it is.
        """
        needed = most_pages(self.limits.groups, served.num_cached)
        if needed >= self.limits.num_pages:
            raise refusal(
                ValueError,
                "ENG-2",
                f"request {served.request.request_id!r} needs {needed} pages at once for {served.num_prompt} + "
                f"{served.max_tokens} tokens, the pool has {self.limits.num_pages - 1}",
            )

    def remove(self, served: Served) -> None:
        """Gives back what a request holds and forgets it: it has finished, or was aborted."""
        self.queue.remove(served)
        served.request.status = EngineRequestStatus.FINISHED
        self._release(served)
        self.manager.free_page_hashes(served.request)

    # -- Steps ----------------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """Decides on the next step, and makes room for it (ENG-2). What it plans must be run.

        O(requests) and what the manager's calls cost: one call for all that decode, where the pool has room for all.
        """
        step = _Step(self.limits.max_num_batched_tokens)
        self._go_on_together(step)
        for served in list(self.queue):
            if served in step.scheduled:
                continue
            if not step.budget or served in step.preempted or not self._go_on(served, step):
                break  # nobody overtakes
        return Plan(tuple(step.chunks), tuple(step.preempted))

    def note_computed(self, plan: Plan) -> None:
        """Takes down that a planned step was dispatched: what it computes can be built upon."""
        for chunk in plan.chunks:
            request = chunk.served.request
            request.num_computed_tokens = chunk.end
            if self._publishes_late:
                self.manager.cache_pages(request, min(chunk.end, request.num_tokens))

    def _go_on_together(self, step: _Step) -> None:
        """Gives the running requests at the head of the queue their slots in one call, where there is room for all."""
        if not self._batches:
            return
        chunks, budget, pages = [], step.budget, 0
        for served in takewhile(lambda served: served.is_running, self.queue):
            count = self._count(served, budget)
            if not count:
                break
            chunks.append(Chunk(served, served.request.num_computed_tokens, count))
            budget -= count
            pages += count
        sizes = [group.kv_cache_spec.page_size for group in self.limits.groups]
        most = sum(pages // size + 2 * len(chunks) for size in sizes)
        if not chunks or self.manager.page_pool.get_num_free_pages() < most:
            return
        batch = self.manager.allocate_slots_batch(
            np.array([chunk.served.slot for chunk in chunks]),
            np.array([chunk.start for chunk in chunks]),
            np.array([chunk.count for chunk in chunks]),
            delay_cache_pages=self._publishes_late,
            tables=self.tables,
            rows=np.array([chunk.served.row for chunk in chunks]),
        )
        for chunk, granted in zip(chunks, batch.granted.tolist(), strict=True):
            if granted:
                step.add(chunk)

    def _go_on(self, served: Served, step: _Step) -> bool:
        """Gives a request slots for a chunk, from others if need be. Returns whether it has got them."""
        while True:
            count = self._place(served, step.budget)
            if not count and not step.chunks and self._last_running() in (served, None):
                count = self._place_less(served, step.budget)
            if count:
                step.add(Chunk(served, served.request.num_computed_tokens, count))
                return True
            victim = self.victim(served)
            if victim is None:
                return False
            self._preempt(victim)
            step.preempted.append(victim)

    def victim(self, served: Served) -> Served | None:
        """Who gives way to a request: the least urgent one that runs and is less urgent than it; None for nobody.

        Whoever is scheduled in this step already is more urgent, and so never gives way in it (ENG-2).
        """
        last = self._last_running()
        return last if last is not None and last.urgency > served.urgency else None

    def _last_running(self) -> Served | None:
        return next((served for served in reversed(self.queue) if served.is_running), None)

    def _place_less(self, served: Served, budget: int) -> int:
        """Gives the only request there is as many slots as there are, down to one (ENG-2). Returns how many."""
        while budget > 1:
            budget //= 2
            count = self._place(served, budget)
            if count:
                return count
        return 0

    # -- Calls on the manager -----------------------------------------------------------------------------------

    def _place(self, served: Served, budget: int) -> int:
        """Gives a request slots for a chunk, if there is room. Returns how many tokens the chunk has."""
        request = served.request
        if served.is_running:
            count = self._count(served, budget)
            given = self.manager.allocate_slots(request, count, delay_cache_pages=self._publishes_late)
            if given is None:
                return 0
            self.tables.append_row(given.get_page_ids(), served.row)
            return count
        if not self._free_rows:
            return 0
        hit: int
        pages, hit = self.manager.get_computed_pages(request)
        count = self._end(hit, budget, request.num_tokens) - hit
        given = self.manager.allocate_slots(request, count, hit, pages, delay_cache_pages=self._publishes_late)
        if given is None:
            return 0
        request.num_computed_tokens = hit
        request.status = EngineRequestStatus.RUNNING
        served.row = self._free_rows.pop()
        if self._batches:
            served.slot = self.manager.slot_of(request.request_id)
        self.tables.add_row(self.manager.get_page_ids(request.request_id), served.row)
        return count

    def _count(self, served: Served, budget: int) -> int:
        """How many tokens a running request computes if there is room."""
        start = served.request.num_computed_tokens
        return self._end(start, budget, served.request.num_tokens) - start

    def _end(self, start: int, budget: int, num_tokens: int) -> int:
        """Where a chunk ends: with states at a boundary, so that what a step leaves can be found again (MAN-13)."""
        end = min(start + budget, num_tokens)
        if not self._publishes_late or not self.limits.enable_caching:
            return end
        boundary = self.limits.boundary
        longest = (num_tokens - 1) // boundary * boundary  # that a prompt like this one can hit
        if start < longest:
            end = min(end, longest)
        aligned = end // boundary * boundary
        return aligned if start < aligned and end < num_tokens else end

    def _preempt(self, served: Served) -> None:
        """Takes from a running request all that it holds; it will compute again what is not cached by then."""
        served.preemptions += 1
        served.request.status = EngineRequestStatus.PREEMPTED
        self._release(served)

    def _release(self, served: Served) -> None:
        """Gives back a request's pages and its row."""
        self.manager.free(served.request)
        served.request.num_computed_tokens = 0
        if served.is_running:
            self.tables.clear_row(served.row)
            self._free_rows.append(served.row)
            served.row = served.slot = -1
