"""MAN: which pages a request holds, from its first look-up to its end.

This version serves no or one cache group, of full attention. A decode call that crosses no page boundary reads
and writes a handful of scalars and touches neither tokens nor pages; one that crosses a boundary takes one page;
one that fills a page publishes it by appending its tokens to the run of the request's last page.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheGroupSpec,
    EngineRequest,
    EngineRequestStatus,
    FullAttentionSpec,
    HashFunction,
)

from .arguments import attribute, flag, integer, listed, refusal
from .cache_pages import CachePages
from .extra_keys import PLAIN, ExtraSegment, extra_segments
from .hashing import PageHashes, PageHashWithGroupId, hash_request_tokens, sha256
from .live_requests import LiveRequests
from .page_pool import PagePool
from .pages import PageList
from .tokens import token_bytes

__all__ = ["CacheManager", "CachePages"]

_GROUP = 0
"""The id of the one cache group."""


class _Publishing(NamedTuple):
    """Pages about to be published: what was read of them before anything changed.

    Attributes:
        start: the place of the first page that ``tokens`` cover.
        after: the cached page before it; 0 if it is the request's first.
        end: the place behind the last.
        tokens: their token bytes.
        keys: their keys, if the pool keeps keys.
    """

    start: int
    after: int
    end: int
    tokens: bytes
    keys: list[PageHashWithGroupId]


class CacheManager:
    """Gives requests their slots: finds cached prefixes, allocates, publishes full pages, frees.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups; none turns caching off. This version serves at most one.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: only False in this version.
        hash_seed: the seed of the keys; None draws one (HASH-1).
        hash_function: the hash of the keys, bytes in, bytes out.
        unhashed_first: see `PagePool` (POOL-13).

    Attributes:
        page_pool: the pool.
        page_size: tokens in a page; None with caching off.
    """

    def __init__(
        self,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        enable_caching: bool = True,
        use_eagle: bool = False,
        *,
        hash_seed: bytes | None = None,
        hash_function: HashFunction = sha256,
        unhashed_first: bool = False,
    ) -> None:
        groups = listed("kv_cache_groups", kv_cache_groups)
        for group in groups:
            if not isinstance(group, CacheGroupSpec) or not isinstance(group.kv_cache_spec, FullAttentionSpec):
                raise refusal(TypeError, "R1", f"kv_cache_groups has {group!r}, which is no full-attention group")
            integer("kv_cache_groups page_size", group.kv_cache_spec.page_size, minimum=1)
        if len(groups) > 1:
            raise refusal(ValueError, "R1", f"kv_cache_groups has {len(groups)} groups, this version serves one")
        if flag("use_eagle", use_eagle):
            raise refusal(ValueError, "R1", "use_eagle=True is not served by this version")
        self.max_model_len = integer("max_model_len", max_model_len, minimum=1)
        self.kv_cache_groups = tuple(groups)
        self.num_kv_cache_groups = len(groups)
        self.enable_caching = flag("enable_caching", enable_caching) and len(groups) > 0
        self.use_eagle = False
        self.page_pool = PagePool(
            num_pages,
            self.enable_caching,
            hash_seed=hash_seed,
            hash_function=hash_function,
            unhashed_first=unhashed_first,
        )
        self.num_pages = self.page_pool.num_pages
        # without a group nothing needs a page: as if one page held every token, and none were ever taken
        self._size = int(groups[_GROUP].kv_cache_spec.page_size) if groups else self.max_model_len
        self.page_size: int | None = self._size if self.enable_caching else None
        self._tree = self.page_pool.index.tree(_GROUP, self._size)
        self._live = LiveRequests()
        self._known: dict[str, EngineRequest] = {}
        self._nothing_new = self.create_empty_page_list()

    @property
    def usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0 (POOL-10)."""
        return self.page_pool.get_usage()

    @property
    def req_to_page_hashes(self) -> Mapping[str, PageHashes]:
        """The keys of the full pages of each request looked up or admitted, until `free_page_hashes`.

        The manager needs none of them: they are computed when this is read.
        """
        pool = self.page_pool
        return {
            request_id: hash_request_tokens(pool.hash_function, self._size, request, none_hash=pool.none_hash)
            for request_id, request in self._known.items()
        }

    def create_empty_page_list(self) -> CachePages:
        """No pages, in as many groups as the manager has."""
        return self._of_ids(()) if self.kv_cache_groups else CachePages(())

    def _of_ids(self, ids: tuple[int, ...] | NDArray[np.int64]) -> CachePages:
        return CachePages((PageList(self.page_pool, ids),))

    # -- Finding ----------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request (MAN-1). Changes nothing in the pool.

        At least the last token is left to compute, since its logits are wanted.

        Args:
            request: a request that is to be admitted.

        Returns:
            Its cached pages, and how many tokens they hold. O(tokens compared), as one memory comparison for
            each run of pages that were cached together.
        """
        slot = self._live.slot_of.get(_request_id(request), -1)
        tokens = self._read_tokens(request)
        segments = extra_segments(attribute(request, "extra_keys"), self._size)
        params = attribute(request, "sampling_params")
        if slot >= 0 and self._live.requests[slot] is not request:
            raise _another(request)
        if not self.enable_caching or (params is not None and params.prompt_logprobs is not None):
            return self.create_empty_page_list(), 0
        self._known[request.request_id] = request
        index = self.page_pool.index
        most = max(len(tokens) // 4 - 1, 0) // self._size
        hits = index.match(self._tree, tokens, segments, most)
        return self._of_ids(hits), len(hits) * self._size

    # -- Allocating -------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Gives a request slots for new tokens (MAN-2) and publishes the pages that they fill (MAN-3).

        ::

            | computed | new computed | new | look-ahead |
            |<---------------- slots ------------------->|
            |<-------- published ------->|                 full pages, as far as the tokens are known

        Args:
            request: the request; its ``num_computed_tokens`` are in the cache already.
            num_new_tokens: tokens to be computed, at least 1, tokens that come from elsewhere included.
            num_new_computed_tokens: tokens just found in the cache; only at admission.
            new_computed_pages: the pages that hold them, as `get_computed_pages` returned them.
            num_lookahead_tokens: speculative tokens to allocate for; never published.
            delay_cache_pages: leave publishing to `cache_pages` or to a later call, for pages whose content
                arrives in a later step.

        Returns:
            The new pages; None if the free pages don't suffice, and then nothing has changed. O(new pages);
            at admission O(tokens) as well, in memory comparisons.

        Raises:
            ValueError: a count is impossible, the id is live for another request (MAN-6), computed tokens were
                never given slots or fell (MAN-8), a computed page is not the request's prefix (MAN-2).
        """
        if type(num_new_tokens) is not int or num_new_tokens < 1:
            num_new_tokens = integer("num_new_tokens", num_new_tokens, minimum=1)
        if type(num_new_computed_tokens) is not int or num_new_computed_tokens < 0:
            num_new_computed_tokens = integer("num_new_computed_tokens", num_new_computed_tokens)
        if type(num_lookahead_tokens) is not int or num_lookahead_tokens < 0:
            num_lookahead_tokens = integer("num_lookahead_tokens", num_lookahead_tokens)
        delay: object = delay_cache_pages
        if type(delay) is not bool:
            delay = flag("delay_cache_pages", delay)
        live = self._live
        slot = live.slot_of.get(_request_id(request), -1)
        try:
            computed = request.num_computed_tokens
        except AttributeError:
            computed = attribute(request, "num_computed_tokens")
        if type(computed) is not int or computed < 0:
            computed = integer("request.num_computed_tokens", computed)
        if slot < 0:
            tokens = self._read_tokens(request)
            segments = extra_segments(attribute(request, "extra_keys"), self._size)
            for name in ("sampling_params", "status"):
                attribute(request, name)
            hits = self._read_hits(new_computed_pages, num_new_computed_tokens, tokens, segments)
            if computed:
                raise _never_slotted(computed, 0)
            promised = self._read_promised(num_new_computed_tokens + num_new_tokens)
            slots = min(promised + num_lookahead_tokens, self.max_model_len)
            return self._admit(request, tokens, segments, hits, promised, slots, bool(delay))
        if live.requests[slot] is not request:
            raise _another(request)
        if new_computed_pages is not None or num_new_computed_tokens:
            self._refuse_hits(new_computed_pages, num_new_computed_tokens, request)
        if computed > live.num_slots[slot]:
            raise _never_slotted(computed, live.num_slots[slot])
        if computed < live.num_computed[slot]:
            raise refusal(
                ValueError, "MAN-8", f"request.num_computed_tokens={computed} fell from {live.num_computed[slot]}"
            )
        promised = self._read_promised(computed + num_new_tokens)
        slots = min(promised + num_lookahead_tokens, self.max_model_len)
        return self._advance(request, slot, computed, promised, slots, bool(delay))

    def _read_promised(self, promised: int) -> int:
        if promised > self.max_model_len:
            raise refusal(
                ValueError,
                "MAN-2",
                f"computed + num_new_tokens={promised} tokens exceed max_model_len={self.max_model_len}",
            )
        return promised

    def _advance(
        self, request: EngineRequest, slot: int, computed: int, promised: int, slots: int, delay: bool
    ) -> CachePages | None:
        """`allocate_slots` for a live request whose arguments have been read."""
        live = self._live
        size = self._size
        first = end = live.num_published[slot]
        if self.enable_caching and not delay:
            end = min(promised, request.num_tokens) // size
        publishing = self._read_publishing(request, slot, end) if end > first else None
        needed = -(-slots // size) - live.num_pages[slot]
        new = self._nothing_new
        if needed > 0 and self.kv_cache_groups:
            pool = self.page_pool
            if needed > pool.get_num_free_pages():
                return None
            if needed == 1:
                page = pool.take_one()
                live.add_page(slot, page)
                new = self._of_ids((page,))
            else:
                pages = pool.take(needed)
                live.add_pages(slot, pages)
                new = self._of_ids(pages)
        live.num_computed[slot] = computed
        if promised > live.num_promised[slot]:
            live.num_promised[slot] = promised
        if slots > live.num_slots[slot]:
            live.num_slots[slot] = slots
        if publishing is not None:
            self._publish(slot, publishing)
        return new

    def _admit(
        self,
        request: EngineRequest,
        tokens: bytes,
        segments: Sequence[ExtraSegment],
        hits: NDArray[np.int64],
        promised: int,
        slots: int,
        delay: bool,
    ) -> CachePages | None:
        """`allocate_slots` for a request that is not live and whose arguments have been read."""
        pool = self.page_pool
        size = self._size
        needed = max(-(-slots // size) - len(hits), 0) if self.kv_cache_groups else 0
        free = pool.get_num_free_pages()
        if needed + len(hits) > free and needed + pool.num_free_of(hits) > free:
            return None
        start = len(hits)
        end = min(promised, len(tokens) // 4) // size if self.enable_caching and not delay else 0
        publishing = None
        if end > start:
            new_tokens = tokens[start * size * 4 : end * size * 4]
            after = int(hits[-1]) if start else 0
            keys = pool.keys_to_be(self._tree, new_tokens, segments, start, after)
            publishing = _Publishing(start, after, end, new_tokens, keys)
        live = self._live
        slot = live.admit(request, segments)
        if len(hits):
            pool.hold(hits)
            live.add_pages(slot, hits)
        pages = pool.take(needed)
        live.add_pages(slot, pages)
        live.num_hits[slot] = live.num_published[slot] = start
        live.num_promised[slot] = promised
        live.num_slots[slot] = slots
        live.num_withdrawals[slot] = pool.num_withdrawals
        if self.enable_caching:
            self._known[request.request_id] = request
        if publishing is not None:
            self._publish(slot, publishing)
        return self._of_ids(pages) if self.kv_cache_groups else self._nothing_new

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3). O(pages published).

        Args:
            request: a live request.
            num_computed_tokens: tokens whose K/V have come; as many as `allocate_slots` was told at most.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        count = integer("num_computed_tokens", num_computed_tokens)
        slot = self._require_live(request)
        live = self._live
        if count > live.num_promised[slot]:
            raise refusal(
                ValueError,
                "MAN-3",
                f"num_computed_tokens={count}: the request was given slots for {live.num_promised[slot]}",
            )
        first = live.num_published[slot]
        end = min(count, request.num_tokens) // self._size if self.enable_caching else 0
        if end > first:
            self._publish(slot, self._read_publishing(request, slot, end))

    def _read_publishing(self, request: EngineRequest, slot: int, end: int) -> "_Publishing":
        """Reads what publishing a live request's pages up to ``end`` takes; changes nothing (R1).

        The index goes on from the page published last, if that is sure to be in its place; else, a page in use
        having lost its hash since, from the request's first page.
        """
        live, pool = self._live, self.page_pool
        start = live.num_published[slot] if live.num_withdrawals[slot] == pool.num_withdrawals else 0
        tokens = self._read_tokens(request, start * self._size, end * self._size)
        after = live.page(slot, start - 1) if start else 0
        keys = pool.keys_to_be(self._tree, tokens, live.segments[slot], start, after)
        return _Publishing(start, after, end, tokens, keys)

    def _publish(self, slot: int, new: "_Publishing") -> None:
        live, pool = self._live, self.page_pool
        first = live.num_published[slot]
        live.num_published[slot] = new.end
        live.num_withdrawals[slot] = pool.num_withdrawals
        if new.end - first == 1 and new.after and new.start == first and live.segments[slot] is PLAIN:
            page = live.page(slot, first)
            if pool.index.publish_next(page, new.after, first, new.tokens):
                pool.note_keys((page,), new.keys)
                return
        pages = live.pages(slot)[new.start : new.end]
        pages[: first - new.start] = 0
        pool.index.publish(self._tree, new.tokens, live.segments[slot], pages, new.start, new.after)
        pool.note_keys(pages.tolist(), new.keys)

    # -- Giving back ------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Gives a request's pages back, the last page first, so that a prefix outlives what follows it (MAN-5).

        Args:
            request: the request; one that is not live is passed over.
            num_written: tokens whose K/V have been written or will be, where the request goes before its last
                step was dispatched; None if all are. What it promised beyond is withdrawn (MAN-4).

        Returns:
            The ids of the other live requests that hold a withdrawn page, in the order of their admission:
            what they computed from it is void, they are to be freed and scheduled anew. Empty for None.
            O(pages), and O(pages of all live requests) where something is withdrawn.
        """
        written = None if num_written is None else integer("num_written", num_written)
        live = self._live
        slot = live.slot_of.get(_request_id(request), -1)
        if slot < 0 or live.requests[slot] is not request:
            return []
        pages = live.pages(slot)
        withdrawn = pages[:0]
        if written is not None:
            withdrawn = pages[max(live.num_hits[slot], written // self._size) : live.num_published[slot]]
        live.dismiss(slot, request.request_id)
        if len(withdrawn):
            self.page_pool.evict_pages(withdrawn)
        self.page_pool.release(pages[::-1])
        return list(live.holders(withdrawn)) if len(withdrawn) else []

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops what was noted of a request's keys: when it is finished, not when it is preempted."""
        self._known.pop(_request_id(request), None)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, if no page is in use (POOL-9). Returns whether it did."""
        return self.page_pool.reset_prefix_cache()

    # -- Looking ----------------------------------------------------------------------------------

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of the pages that a request holds, a list for each group; empty lists if it is not live."""
        if not isinstance(request_id, str):
            raise refusal(TypeError, "R1", f"request_id={request_id!r} must be a str")
        slot = self._live.slot_of.get(request_id, -1)
        pages: list[int] = self._live.pages(slot).tolist() if slot >= 0 else []
        return (pages,) if self.kv_cache_groups else ()

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: how many requests are running; where it is not the number of live requests
                with that status, the engine's count and the manager's differ and the answer is 0.
        """
        count = integer("num_scheduled_requests", num_scheduled_requests)
        live = self._live
        slot = self._require_live(request)
        if not _is_running(request):
            raise refusal(
                ValueError, "MAN-10", f"request {request.request_id!r} has status {request.status}, not RUNNING"
            )
        running = [other for other in live.slot_of.values() if _is_running(live.requests[other])]
        common = live.common_pages(slot, running) if count == len(running) else 0
        return [common for _ in self.kv_cache_groups]

    # -- Reading arguments (R1) -------------------------------------------------------------------

    def _read_tokens(self, request: EngineRequest, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a request's tokens ``[start, stop)``."""
        tokens, num_tokens = attribute(request, "all_token_ids"), attribute(request, "num_tokens")
        data = token_bytes("request.all_token_ids", tokens, start, stop)
        if num_tokens != len(tokens):
            raise refusal(ValueError, "R1", f"request.num_tokens={num_tokens}, but all_token_ids has {len(tokens)}")
        return data

    def _read_hits(
        self, given: CachePages | None, found: int, tokens: bytes, segments: Sequence[ExtraSegment]
    ) -> NDArray[np.int64]:
        """The pages just found, held against the request once more (MAN-2)."""
        hits = self._hit_ids(given, found)
        if len(hits):
            if not self.enable_caching:
                raise refusal(ValueError, "MAN-2", f"new_computed_pages={given!r} with caching off")
            if len(hits) * self._size * 4 > len(tokens):
                raise refusal(
                    ValueError, "MAN-2", f"new_computed_pages hold {found} tokens, the request has {len(tokens) // 4}"
                )
            index = self.page_pool.index
            tree = self._tree
            # the usual case, a look-up made just before, costs a third of the general one
            if np.array_equal(index.match(tree, tokens, segments, len(hits)), hits):
                return hits
            good = index.holds(tree, tokens, segments, hits)
            if not good.all():
                raise refusal(
                    ValueError,
                    "MAN-2",
                    f"new_computed_pages: page {hits[good.argmin()]} does not hold the request's prefix",
                )
        return hits

    def _hit_ids(self, given: CachePages | None, found: int) -> NDArray[np.int64]:
        hits = np.empty(0, np.int64)
        if given is not None:
            if not isinstance(given, CachePages):
                raise refusal(TypeError, "R1", f"new_computed_pages={given!r} must be CachePages")
            if len(given.pages) != self.num_kv_cache_groups:
                raise refusal(
                    ValueError,
                    "MAN-2",
                    f"new_computed_pages has {len(given.pages)} groups, the manager {self.num_kv_cache_groups}",
                )
            if given.pages:
                hits = self.page_pool.read_pages("new_computed_pages", given.pages[_GROUP])
        if found != len(hits) * self._size:
            raise refusal(
                ValueError,
                "MAN-2",
                f"num_new_computed_tokens={found}, but new_computed_pages hold {len(hits) * self._size}",
            )
        return hits

    def _refuse_hits(self, given: CachePages | None, found: int, request: EngineRequest) -> None:
        if len(self._hit_ids(given, found)):
            raise refusal(
                ValueError, "MAN-2", f"new_computed_pages for {request.request_id!r}, which holds pages already"
            )

    def _require_live(self, request: EngineRequest) -> int:
        slot = self._live.slot_of.get(_request_id(request), -1)
        if slot < 0 or self._live.requests[slot] is not request:
            raise refusal(ValueError, "R1", f"request {request.request_id!r} is not live")
        return slot

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: one does not hold; the message shows the whole state.
        """
        self.page_pool.check()
        self._live.check(self.page_pool, self._size if self.kv_cache_groups else 0, self.max_model_len)


def _request_id(request: EngineRequest) -> str:
    """Reads the id of a request (R1)."""
    try:
        request_id = request.request_id
    except AttributeError:
        request_id = attribute(request, "request_id")
    if type(request_id) is not str and not isinstance(request_id, str):
        raise refusal(TypeError, "R1", f"request.request_id={request_id!r} must be a str")
    return request_id


def _another(request: EngineRequest) -> Exception:
    return refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")


def _never_slotted(computed: int, slots: int) -> Exception:
    return refusal(ValueError, "MAN-8", f"request.num_computed_tokens={computed}: only {slots} have slots")


def _is_running(request: EngineRequest | None) -> bool:
    return request is not None and getattr(request.status, "name", None) == EngineRequestStatus.RUNNING.name
