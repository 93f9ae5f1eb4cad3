"""A replay with the specification beside the backend: every call goes to both, and the first difference ends it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import PageCopy, PartCopy, Request

from ..backends.loading import Backend, load_backend
from ..calls.contrast import contrast
from .engine import DeviationError, Engine, Pages, Sizes

__all__ = ["LockstepEngine"]

_COMPARE_EVERY = 50
"""Steps from one comparison of the whole state to the next: it costs O(pool)."""

_CHECK_EVERY = 500
"""Steps from one call of both sides' ``check()`` to the next: these, and counting cached pages, cost far more."""


class LockstepEngine(Engine):
    """An engine that holds its backend to the specification.

    The specification has request objects of its own, brought up to date before each call, and is asked first.
    After every call pages of all groups, counts and usage are compared; before every step the copies of pages;
    after it the tables' host rows; now and then, and at the end, what each request holds, the eviction order, the
    pages cached and evicted, the device's rows and what each side's ``check()`` says.

    Args:
        backend: the backend.
        sizes: how large both sides are.
        hash_seed: the seed of the keys, for both.
        batched: whether the backend serves a step's requests by one call (MAN-11); the specification never does.
        eviction: the policy by which free pages are evicted, for both (EVICT-1).

    Attributes:
        comparisons: how many results have been compared.
    """

    def __init__(
        self, backend: Backend, sizes: Sizes, hash_seed: bytes, *, batched: bool = False, eviction: str = "lru"
    ) -> None:
        super().__init__(backend, sizes, hash_seed, batched=batched, eviction=eviction)
        self.comparisons = 0
        self._spec = Engine(load_backend("kvproof.spec"), sizes, hash_seed, eviction=self.eviction)
        self._mirrors: dict[str, Request] = {}
        self._spec_hits: dict[str, Pages] = {}
        self._steps = 0

    def open(self, request_id: str, tokens: NDArray[np.int32], num_tokens: int) -> Request:
        """Opens a request on both sides, an object for each."""
        self._mirrors[request_id] = self._spec.open(request_id, tokens, num_tokens)
        return super().open(request_id, tokens, num_tokens)

    # -- The manager ------------------------------------------------------------------------------

    def look_up(self, request: Request) -> tuple[Pages, int]:
        """Looks up on both sides: the same pages, the same number of tokens."""
        call = "get_computed_pages"
        with self._specification() as spec:
            spec_hits, spec_tokens = spec.look_up(self._mirror(request))
        hits, num_tokens = super().look_up(request)
        self._compare_pages(call, request, spec_hits, hits)
        self._compare(f"{call}: tokens", request.request_id, spec_tokens, num_tokens)
        self._compare_pool(call, request)
        self._spec_hits[request.request_id] = spec_hits
        return hits, num_tokens

    def junction(self, request: Request) -> int:
        """Asks both sides: the same number of tokens."""
        with self._specification() as spec:
            expected = spec.junction(self._mirror(request))
        observed = super().junction(request)
        self._compare("get_junction", request.request_id, expected, observed)
        return observed

    def admit(self, request: Request, num_new_tokens: int, hits: Pages, num_hit_tokens: int) -> Pages | None:
        """Admits on both sides: the same pages, or None from both."""
        call = "allocate_slots at admission"
        spec_hits = self._spec_hits.pop(request.request_id)
        with self._specification() as spec:
            expected = spec.admit(self._mirror(request), num_new_tokens, spec_hits, num_hit_tokens)
        observed = super().admit(request, num_new_tokens, hits, num_hit_tokens)
        self._compare_pages(call, request, expected, observed)
        self._compare_pool(call, request)
        return observed

    def advance(self, requests: Sequence[Request], num_new_tokens: Sequence[int]) -> list[Pages]:
        """More tokens for each request, compared call by call; what one call gave all, after it."""
        granted: list[Pages] = []
        if self._fits_one_call(num_new_tokens):
            with self._specification() as spec:
                due = spec.advance([self._mirror(request) for request in requests], num_new_tokens)
            granted = self._advance_all(requests, num_new_tokens)
            for request, expected, observed in zip(requests, due, granted, strict=True):
                self._compare_pages("allocate_slots_batch", request, expected, observed)
                self._compare_pool("allocate_slots_batch", request)
            return granted
        for request, num_tokens in zip(requests, num_new_tokens, strict=True):
            call = self.advance_call(num_tokens)
            with self._specification() as spec:
                expected = spec.advance([self._mirror(request)], [num_tokens])
            observed = super().advance([request], [num_tokens])
            self._compare_pages(call, request, expected[0] if expected else None, observed[0] if observed else None)
            self._compare_pool(call, request)
            if not observed:
                break
            granted += observed
        return granted

    def take_copies(self) -> list[PageCopy | PartCopy]:
        """Takes the copies on both sides: the same ones in the same order."""
        with self._specification() as spec:
            expected = spec.take_copies()
        observed = super().take_copies()
        if expected or observed:
            self._compare("take_page_copies", None, list(map(tuple, expected)), list(map(tuple, observed)))
        return observed

    def free(self, request: Request, *, finished: bool) -> list[str]:
        """Frees on both sides: the same requests, none, lose what they hold."""
        with self._specification() as spec:
            expected = spec.free(self._mirror(request), finished=finished)
        observed = super().free(request, finished=finished)
        self._compare("free", request.request_id, expected, observed)
        self._compare_pool("free", request)
        if finished:
            del self._mirrors[request.request_id]
        return observed

    # -- The tables -------------------------------------------------------------------------------

    def fill_row(self, request: Request, row: int) -> None:
        """Fills a row on both sides, each with the pages that it says the request holds."""
        with self._specification() as spec:
            spec.fill_row(self._mirror(request), row)
        super().fill_row(request, row)

    def append_rows(self, page_ids: Sequence[Sequence[Sequence[int]]], rows: Sequence[int]) -> None:
        """Adds new pages on both sides."""
        with self._specification() as spec:
            spec.append_rows(page_ids, rows)
        super().append_rows(page_ids, rows)

    def drop_row(self, row: int, last: int) -> None:
        """Takes a row out on both sides."""
        with self._specification() as spec:
            spec.drop_row(row, last)
        super().drop_row(row, last)

    def commit(self, num_rows: int) -> None:
        """Commits on both sides."""
        with self._specification() as spec:
            spec.commit(num_rows)
        super().commit(num_rows)

    # -- The whole state --------------------------------------------------------------------------

    def end_step(self) -> None:
        """Compares the tables' host rows, and now and then everything."""
        self._compare_tables("get_cpu_tensor", self._spec.host_tables(), self.host_tables())
        self._steps += 1
        if self._steps % _COMPARE_EVERY == 0:
            self._compare_state()
        if self._steps % _CHECK_EVERY == 0:
            self._check_both()

    def end_replay(self) -> None:
        """Compares everything once more."""
        self._compare_state()
        self._check_both()
        super().end_replay()

    def _compare_state(self) -> None:
        for request_id in self._mirrors:
            self._compare_groups("get_page_ids", request_id, self._spec.page_ids(request_id), self.page_ids(request_id))
        call = "page_pool.free_page_queue.get_all_free_pages"
        self._compare(call, None, list(self._spec.free_order()), list(self.free_order()))
        self._compare_tables("get_device_tensor", self._spec.device_tables(), self.device_tables())

    def _check_both(self) -> None:
        self._compare("cached_page_hash_to_page: pages", None, self._spec.num_cached_pages(), self.num_cached_pages())
        evictions = self.num_evictions()
        seen = self.eviction_counters()
        if seen is not None:
            self._compare("page_pool.eviction_counters", None, self._spec.eviction_counters(), seen)
        if evictions is not None:
            self._compare("counters.evictions", None, self._spec.num_evictions(), evictions)
        with self._specification() as spec:
            spec.check()
        self.check()

    # -- Comparing --------------------------------------------------------------------------------

    @contextmanager
    def _specification(self) -> Iterator[Engine]:
        """The specification's engine. That one fails is no verdict on the backend but a fault of this suite."""
        try:
            yield self._spec
        except DeviationError as failure:
            raise RuntimeError(f"the specification itself failed: {failure}") from failure

    def _mirror(self, request: Request) -> Request:
        """The specification's own object for a request, brought up to date."""
        mirror = self._mirrors[request.request_id]
        mirror.num_tokens = request.num_tokens
        mirror.num_computed_tokens = request.num_computed_tokens
        mirror.status = request.status
        return mirror

    def _compare(self, call: str, request_id: str | None, expected: object, observed: object) -> None:
        self.comparisons += 1
        if expected != observed:
            raise DeviationError(call, request_id, *contrast(expected, observed))

    def _compare_pages(self, call: str, request: Request, expected: Pages | None, observed: Pages | None) -> None:
        """Compares what a call gave: pages of the same ids in every group, or None."""
        if expected is None or observed is None:
            shown = [None if pages is None else pages.get_page_ids() for pages in (expected, observed)]
            self._compare(call, request.request_id, *shown)
        else:
            self._compare_groups(call, request.request_id, expected.get_page_ids(), observed.get_page_ids())

    def _compare_groups(
        self, call: str, request_id: str, expected: Sequence[Sequence[int]], observed: Sequence[Sequence[int]]
    ) -> None:
        """Compares page ids by group."""
        self._compare(f"{call}: groups", request_id, len(expected), len(observed))
        for group, (expected_ids, observed_ids) in enumerate(zip(expected, observed, strict=True)):
            self._compare(self._of_group(call, group), request_id, list(expected_ids), list(observed_ids))

    def _of_group(self, call: str, group: int) -> str:
        return call if self.num_groups == 1 else f"{call}, group {group}"

    def _compare_pool(self, call: str, request: Request) -> None:
        """Compares the free count and the usage after a call, and holds the backend to leaving the request alone."""
        request_id = request.request_id
        self._compare(f"free pages after {call}", request_id, self._spec.num_free_pages(), self.num_free_pages())
        expected, observed = self._spec.usage(), self.usage()
        # one rounding is due, the last bit is not
        if not math.isclose(expected, observed, abs_tol=1e-12):
            self._compare(f"usage after {call}", request_id, expected, observed)
        mirror = self._mirrors[request_id]
        expected_counts = (mirror.num_tokens, mirror.num_computed_tokens)
        observed_counts = (request.num_tokens, request.num_computed_tokens)
        self._compare(f"the request's token counts after {call}", request_id, expected_counts, observed_counts)

    def _compare_tables(
        self, call: str, expected_tables: Sequence[NDArray[np.int32]], observed_tables: Sequence[NDArray[np.int32]]
    ) -> None:
        """Compares the groups' tables; of those that differ, the first row that does is shown."""
        for group, (expected, observed) in enumerate(zip(expected_tables, observed_tables, strict=True)):
            name = self._of_group(call, group)
            self._compare(f"{name}: shape", None, expected.shape, observed.shape)
            self._compare(f"{name}: dtype", None, str(expected.dtype), str(observed.dtype))
            if not np.array_equal(expected, observed):
                row = int(np.nonzero((expected != observed).any(axis=1))[0][0])
                self._compare(f"{name}, row {row}", None, expected[row].tolist(), observed[row].tolist())
