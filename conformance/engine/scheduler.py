"""Who computes how many tokens in a step: continuous batching in order of urgency (ENG-2). Nothing here is on a device.

All requests stand in one queue by urgency: higher priority first, then who came first. A step goes through it from
the front. Who has no room takes it from the least urgent one that runs; who still has none waits, and nobody behind
overtakes. So the first of the queue always goes on, and everybody is first one day (ENG-2).

Who gives way goes to host memory where that has room for it, else computes again what is not cached by then. Neither
changes the argument. Pages of the device are held by those alone who run: the fence of a swap comes in the step that
begins it, so that no copy holds any between steps. All who run and are not first may be made to give way, and giving
way never waits for host memory. So the first of the queue finds, at worst, the whole pool free. If it is away, the
pages it needs to come back are some of those that it held when it went; they fit. From then on it is served as if it
had been alone all the time, a token at a time if need be, which fits as well (see `groups.most_pages`). It computes at
least one token in each step, and loses none, as nobody is more urgent. Those who are away hold host pages, which only
others who give way could want, and those can do without.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from kvproof.spec.declarations import EngineRequestStatus, SwapPlan
from kvproof.spec.reading.arguments import refusal

from .groups import most_pages
from .plans import Chunk, Limits, Plan, Served
from .step_ends import StepEnds, junction_of

__all__ = ["Scheduler"]


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
        move: runs the copies of a swap, all of them before it returns; None where there is no host memory. An engine
            that has none leaves it out.

    Attributes:
        queue: all unfinished requests, the most urgent first.
    """

    def __init__(
        self, manager: Any, tables: Any, limits: Limits, move: Callable[[SwapPlan], None] | None = None
    ) -> None:
        self.manager, self.tables, self.limits, self._move = manager, tables, limits, move
        self.queue: list[Served] = []
        self._swaps: list[SwapPlan] = []
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        unit = getattr(manager, "match_unit", None) if limits.enable_caching else None
        # What is copied is there when a step has ended; who finds it in the same step would copy it too early (MAN-13).
        self._publishes_late, self._copies_parts = limits.has_states or unit is not None, unit is not None
        interval = getattr(manager, "retention_interval", 0)
        self._ends = StepEnds(limits.groups if limits.enable_caching else (), interval, unit)
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

        Swaps are run on the way, each before the manager is told of anything else: pages of who leaves are read before
        others write them, and who comes back has its tokens before it goes on (SWAP-1).

        O(requests) and what the manager's calls cost: one call for all that decode, where the pool has room for all.
        """
        self._swaps = []
        step = _Step(self.limits.max_num_batched_tokens)
        self._go_on_together(step)
        for served in list(self.queue):
            if served in step.scheduled:
                continue
            if not step.budget or served in step.preempted or not self._go_on(served, step):
                break  # nobody overtakes
        return Plan(tuple(step.chunks), tuple(step.preempted), tuple(self._swaps))

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
            count = self._end(served, served.request.num_computed_tokens, budget) - served.request.num_computed_tokens
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
        """Gives the only request there is as many slots as there are, down to one (ENG-2). Returns how many.

        A request may fit the pool, but not beside the page that a hit amid a page is copied from: then it hits nothing.
        """
        while budget > 1:
            budget //= 2
            count = self._place(served, budget)
            if count:
                return count
        return self._place(served, 1, hits=False) if self._copies_parts else 0

    # -- Calls on the manager -----------------------------------------------------------------------------------

    def _place(self, served: Served, budget: int, *, hits: bool = True) -> int:
        """Gives a request slots for a chunk, if there is room. Returns how many tokens the chunk has.

        Args:
            served: the request.
            budget: the most tokens.
            hits: whether a request that is to be admitted takes what is cached of it.
        """
        request = served.request
        if not served.is_running and not self._free_rows:
            return 0
        if served.is_away and not self._come_back(served):
            return 0
        if served.is_running:
            count = self._end(served, request.num_computed_tokens, budget) - request.num_computed_tokens
            given = self.manager.allocate_slots(request, count, delay_cache_pages=self._publishes_late)
            if given is None:
                return 0
            self.tables.append_row(given.get_page_ids(), served.row)
            return count
        hit: int
        pages, hit = self.manager.get_computed_pages(request) if hits else (None, 0)
        served.junction = junction_of(self.manager, request)
        count = self._end(served, hit, budget) - hit
        given = self.manager.allocate_slots(request, count, hit, pages, delay_cache_pages=self._publishes_late)
        if given is None:
            return 0
        request.num_computed_tokens = hit
        self._take_row(served)
        return count

    def _take_row(self, served: Served) -> None:
        """Gives a request that the manager has admitted a row with its pages: it runs."""
        request = served.request
        request.status = EngineRequestStatus.RUNNING
        served.row = self._free_rows.pop()
        if self._batches:
            served.slot = self.manager.slot_of(request.request_id)
        self.tables.add_row(self.manager.get_page_ids(request.request_id), served.row)

    def _come_back(self, served: Served) -> bool:
        """Brings a request from host memory to the device, if there is room (SWAP-1). Returns whether it runs."""
        plan = self.manager.swap_in(served.request)
        if plan is None:
            return False
        self._swap(plan)
        served.is_away = False
        self._take_row(served)
        return True

    def _swap(self, plan: SwapPlan) -> None:
        """Runs a swap's copies; nothing can overtake them any more, which the manager is told (SWAP-1)."""
        assert self._move is not None
        self._move(plan)
        self.manager.swap_done(plan.swap_id)
        self._swaps.append(plan)

    def _end(self, served: Served, start: int, budget: int) -> int:
        """Where a chunk of a request ends that starts behind some tokens, if there is room for it."""
        num_tokens = served.request.num_tokens
        return self._ends.end(start, min(start + budget, num_tokens), num_tokens, served.junction)

    def _preempt(self, served: Served) -> None:
        """Takes from a running request all that it holds; what it computed goes to host memory, or is lost.

        What is lost it will compute again, but for what is cached by then.
        """
        served.preemptions += 1
        plan = None if self._move is None else self.manager.swap_out(served.request)
        served.request.status = EngineRequestStatus.PREEMPTED
        if plan is None:
            self._release(served)
            return
        self._swap(plan)
        served.is_away = True
        self._leave_row(served)

    def _release(self, served: Served) -> None:
        """Gives back a request's pages, on the device or the host, and its row."""
        self.manager.free(served.request)
        served.request.num_computed_tokens = 0
        served.is_away = False
        if served.is_running:
            self._leave_row(served)

    def _leave_row(self, served: Served) -> None:
        self.tables.clear_row(served.row)
        self._free_rows.append(served.row)
        served.row = served.slot = -1
