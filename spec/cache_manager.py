"""MAN: which pages a request holds, from its first look-up to its end.

This version serves no or one cache group, of full attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .arguments import attribute, flag, integer, listed, refusal, token_list
from .cache_pages import CachePages
from .declarations import (
    CacheGroupSpec,
    EngineRequest,
    EngineRequestStatus,
    ExtraKey,
    FullAttentionSpec,
    HashFunction,
)
from .hashing import PageHash, hash_request_tokens, request_extra_keys, sha256
from .page_pool import PagePool
from .page_table import cdiv
from .pages import CachePage

__all__ = ["CacheManager", "CachePages"]

_GROUP = 0
"""The id of the one cache group."""


@dataclass
class _Live:
    """A live request: one that was given slots and not yet freed.

    Attributes:
        request: the engine's object.
        pages: the pages it holds, in the order of its tokens.
        num_hits: leading pages that it found in the cache.
        num_published: leading pages that are published (MAN-3); at least ``num_hits``.
        num_promised: tokens up to which pages may be published: the most computed + new tokens so far.
        num_slots: tokens that have a slot, look-ahead included.
        num_computed: computed tokens at the last call (MAN-8).
    """

    request: EngineRequest
    pages: list[CachePage] = field(default_factory=list)
    num_hits: int = 0
    num_published: int = 0
    num_promised: int = 0
    num_slots: int = 0
    num_computed: int = 0


@dataclass
class _Keys:
    """The keys of a request id, with the tokens and extra keys that they were computed from (MAN-6)."""

    tokens: list[int]
    extra_keys: tuple[ExtraKey, ...]
    chain: list[tuple[PageHash, int]] = field(default_factory=list)


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
        self.page_size: int | None = self._size if self.enable_caching else None
        self._live: dict[str, _Live] = {}
        self._known: dict[str, EngineRequest] = {}
        self._keys: dict[str, _Keys] = {}

    @property
    def _size(self) -> int:
        return int(self.kv_cache_groups[_GROUP].kv_cache_spec.page_size)

    @property
    def usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0 (POOL-10)."""
        return self.page_pool.get_usage()

    @property
    def req_to_page_hashes(self) -> dict[str, list[PageHash]]:
        """The keys of the full pages of each request looked up or admitted, until `free_page_hashes`."""
        pool = self.page_pool
        return {
            request_id: list(hash_request_tokens(pool.hash_function, self._size, request, none_hash=pool.none_hash))
            for request_id, request in self._known.items()
        }

    def create_empty_page_list(self) -> CachePages:
        """No pages, in as many groups as the manager has."""
        return CachePages([] for _ in self.kv_cache_groups)

    # -- Finding ----------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request (MAN-1). Changes nothing in the pool.

        At least the last token is left to compute, since its logits are wanted.

        Args:
            request: a request that is to be admitted.

        Returns:
            Its cached pages, and how many tokens they hold.
        """
        tokens = self._read_tokens(request)
        extra_keys = request_extra_keys(request)
        self._require_own_id(request)
        wants_logprobs = request.sampling_params is not None and request.sampling_params.prompt_logprobs is not None
        if not self.enable_caching or wants_logprobs:
            return self.create_empty_page_list(), 0
        most = max(len(tokens) - 1, 0) // self._size
        chain = self._chain(request.request_id, tokens, extra_keys, most)[:most]
        self._known[request.request_id] = request
        hits: list[CachePage] = []
        for key, content in chain:
            candidates = self.page_pool.cached_under(key, _GROUP)
            # R2: a key of a weak hash function may stand for other content as well
            page = next((page for page in candidates if self.page_pool.content_of(page) == content), None)
            if page is None:
                break
            hits.append(page)
        return CachePages([hits]), len(hits) * self._size

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
            The new pages; None if the free pages don't suffice, and then nothing has changed.

        Raises:
            ValueError: a count is impossible, the id is live for another request (MAN-6), computed tokens were
                never given slots or fell (MAN-8), a computed page is not the request's prefix (MAN-2).
        """
        new = integer("num_new_tokens", num_new_tokens, minimum=1)
        found = integer("num_new_computed_tokens", num_new_computed_tokens)
        lookahead = integer("num_lookahead_tokens", num_lookahead_tokens)
        delay = flag("delay_cache_pages", delay_cache_pages)
        tokens = self._read_tokens(request)
        extra_keys = request_extra_keys(request)
        live = self._live.get(request.request_id)
        computed = self._read_computed(request, live)
        hits = self._read_hits(request, live, found, new_computed_pages, tokens, extra_keys)
        promised = computed + found + new
        if promised > self.max_model_len:
            raise refusal(
                ValueError,
                "MAN-2",
                f"computed + num_new_tokens={promised} tokens exceed max_model_len={self.max_model_len}",
            )
        slots = min(promised + lookahead, self.max_model_len)
        chain = self._read_chain(request, live, tokens, extra_keys, promised)

        held = len(live.pages) if live else 0
        needed = max(cdiv(slots, self._size) - held - len(hits), 0) if self.kv_cache_groups else 0
        if needed + sum(page.ref_cnt == 0 for page in hits) > self.page_pool.get_num_free_pages():
            return None
        if live is None:
            live = self._live[request.request_id] = _Live(request, num_hits=len(hits), num_published=len(hits))
            if self.enable_caching:
                self._known[request.request_id] = request
        self.page_pool.touch([hits])
        live.pages.extend(hits)
        pages = self.page_pool.get_new_pages(needed)
        live.pages.extend(pages)
        live.num_computed = computed
        live.num_promised = max(live.num_promised, promised)
        live.num_slots = max(live.num_slots, slots)
        if not delay:
            self._publish(live, chain, promised)
        return CachePages([pages] if self.kv_cache_groups else [])

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3).

        Args:
            request: a live request.
            num_computed_tokens: tokens whose K/V have come; as many as `allocate_slots` was told at most.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        count = integer("num_computed_tokens", num_computed_tokens)
        tokens = self._read_tokens(request)
        extra_keys = request_extra_keys(request)
        live = self._require_live(request)
        if count > live.num_promised:
            raise refusal(
                ValueError,
                "MAN-3",
                f"num_computed_tokens={count}: the request was given slots for {live.num_promised}",
            )
        self._publish(live, self._read_chain(request, live, tokens, extra_keys, count), count)

    def _publish(self, live: _Live, chain: Sequence[tuple[PageHash, int]], count: int) -> None:
        """Publishes the full pages up to ``count`` tokens, as far as the tokens are known (MAN-3)."""
        end = self._publishable(live.request.num_tokens, count)
        if end > live.num_published:
            self.page_pool.publish(live.pages[live.num_published : end], chain[live.num_published : end], _GROUP)
            live.num_published = end

    def _publishable(self, num_tokens: int, count: int) -> int:
        """How many leading pages of ``num_tokens`` known tokens are full at ``count`` tokens (MAN-3)."""
        return min(count, num_tokens) // self._size if self.enable_caching else 0

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
        """
        written = None if num_written is None else integer("num_written", num_written)
        live = self._live.get(_request_id(request))
        if live is None or live.request is not request:
            return []
        withdrawn: list[CachePage] = []
        if written is not None and self.enable_caching:
            withdrawn = live.pages[max(live.num_hits, written // self._size) : live.num_published]
        del self._live[request.request_id]
        self.page_pool.evict_pages(page.page_id for page in withdrawn)
        self.page_pool.free_pages(reversed(live.pages))
        lost = set(withdrawn)
        return [request_id for request_id, other in self._live.items() if not lost.isdisjoint(other.pages)]

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the keys computed for a request: when it is finished, not when it is preempted."""
        self._known.pop(_request_id(request), None)
        self._keys.pop(request.request_id, None)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, if no page is in use (POOL-9). Returns whether it did."""
        return self.page_pool.reset_prefix_cache()

    # -- Looking ----------------------------------------------------------------------------------

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of the pages that a request holds, a list for each group; empty lists if it is not live."""
        if not isinstance(request_id, str):
            raise refusal(TypeError, "R1", f"request_id={request_id!r} must be a str")
        pages = self._live[request_id].pages if request_id in self._live else []
        return tuple([page.page_id for page in pages] for _ in self.kv_cache_groups)

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: how many requests are running; where it is not the number of live requests
                with that status, the engine's count and the manager's differ and the answer is 0.
        """
        count = integer("num_scheduled_requests", num_scheduled_requests)
        own = self._require_live(request)
        if not _is_running(request):
            raise refusal(
                ValueError,
                "MAN-10",
                f"request {request.request_id!r} has status {request.status}, not RUNNING",
            )
        running = [live.pages for live in self._live.values() if _is_running(live.request)]
        if count != len(running):
            return [0 for _ in self.kv_cache_groups]
        common = 0
        for page, *others in zip(own.pages, *running, strict=False):
            if page.is_null or any(other is not page for other in others):
                break
            common += 1
        return [common for _ in self.kv_cache_groups]

    # -- Reading arguments (R1) -------------------------------------------------------------------

    def _read_tokens(self, request: EngineRequest) -> list[int]:
        _request_id(request)
        tokens = token_list("request.all_token_ids", request.all_token_ids)
        if request.num_tokens != len(tokens):
            raise refusal(
                ValueError,
                "R1",
                f"request.num_tokens={request.num_tokens}, but all_token_ids has {len(tokens)}",
            )
        return tokens

    def _read_computed(self, request: EngineRequest, live: _Live | None) -> int:
        computed = integer("request.num_computed_tokens", request.num_computed_tokens)
        self._require_own_id(request)
        if computed > (live.num_slots if live else 0):
            raise refusal(
                ValueError,
                "MAN-8",
                f"request.num_computed_tokens={computed}: only {live.num_slots if live else 0} have slots",
            )
        if live is not None and computed < live.num_computed:
            raise refusal(ValueError, "MAN-8", f"request.num_computed_tokens={computed} fell from {live.num_computed}")
        return computed

    def _require_own_id(self, request: EngineRequest) -> None:
        live = self._live.get(request.request_id)
        if live is not None and live.request is not request:
            raise refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")

    def _read_hits(
        self,
        request: EngineRequest,
        live: _Live | None,
        found: int,
        given: CachePages | None,
        tokens: list[int],
        extra_keys: tuple[ExtraKey, ...],
    ) -> list[CachePage]:
        """The pages just found, held against the request once more (MAN-2)."""
        if given is not None and not isinstance(given, CachePages):
            raise refusal(TypeError, "R1", f"new_computed_pages={given!r} must be CachePages")
        if given is not None and len(given.pages) != self.num_kv_cache_groups:
            raise refusal(
                ValueError,
                "MAN-2",
                f"new_computed_pages has {len(given.pages)} groups, the manager {self.num_kv_cache_groups}",
            )
        hits = list(given.pages[_GROUP]) if given is not None and given.pages else []
        for page in hits:
            if page._pool is not self.page_pool:
                raise refusal(ValueError, "R1", f"new_computed_pages: page {page.page_id} belongs to another pool")
        size = self._size if self.kv_cache_groups else 1
        if found != len(hits) * size:
            raise refusal(
                ValueError,
                "MAN-2",
                f"num_new_computed_tokens={found}, but new_computed_pages hold {len(hits) * size}",
            )
        if hits and live is not None:
            raise refusal(
                ValueError,
                "MAN-2",
                f"new_computed_pages for {request.request_id!r}, which holds pages already",
            )
        if hits and not self.enable_caching:
            raise refusal(ValueError, "MAN-2", f"new_computed_pages={given!r} with caching off")
        if len(hits) * size > len(tokens):
            raise refusal(ValueError, "MAN-2", f"new_computed_pages hold {len(hits) * size} tokens of {len(tokens)}")
        chain = self._chain(request.request_id, tokens, extra_keys, len(hits)) if hits else []
        for page, (_, content) in zip(hits, chain, strict=False):
            if self.page_pool.content_of(page) != content:
                raise refusal(
                    ValueError,
                    "MAN-2",
                    f"new_computed_pages: page {page.page_id} does not hold the request's prefix",
                )
        return hits

    def _read_chain(
        self,
        request: EngineRequest,
        live: _Live | None,
        tokens: list[int],
        extra_keys: tuple[ExtraKey, ...],
        count: int,
    ) -> Sequence[tuple[PageHash, int]]:
        """Keys and contents of the pages to be published, if any, read before anything changes (R1)."""
        end = self._publishable(len(tokens), count)
        if self.enable_caching and (live is None or end > live.num_published):
            return self._chain(request.request_id, tokens, extra_keys, end)
        return ()

    def _require_live(self, request: EngineRequest) -> _Live:
        live = self._live.get(_request_id(request))
        if live is None or live.request is not request:
            raise refusal(ValueError, "R1", f"request {request.request_id!r} is not live")
        return live

    def _chain(
        self, request_id: str, tokens: list[int], extra_keys: tuple[ExtraKey, ...], num_pages: int
    ) -> list[tuple[PageHash, int]]:
        """Key and content of a request's first ``num_pages`` pages or more, computed once for the same tokens (MAN-6).

        Raises:
            ValueError: the request is live and its tokens or extra keys are no longer those of its keys. Finding
                that costs O(tokens) a call: a backend may leave it to its caller.
        """
        keys = self._keys.get(request_id)
        if keys is None or keys.extra_keys != extra_keys or keys.tokens != tokens[: len(keys.tokens)]:
            if keys is not None and request_id in self._live:
                raise refusal(ValueError, "MAN-6", f"request {request_id!r} is live, its tokens or extra keys changed")
            keys = self._keys[request_id] = _Keys([], extra_keys)
        keys.tokens = tokens
        return self.page_pool.extend_chain(keys.chain, tokens, extra_keys, self._size, max(num_pages, len(keys.chain)))

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages held).

        Raises:
            AssertionError: one does not hold; the message shows the whole state.
        """
        self.page_pool.check()
        try:
            holders: dict[int, list[str]] = {}
            for request_id, live in self._live.items():
                assert live.request.request_id == request_id, "MAN-6: a live request changed its id"
                assert live.num_hits <= live.num_published <= len(live.pages), "MAN-3: more published than held"
                assert live.num_promised <= live.num_slots <= self.max_model_len, "MAN-2: slots"
                if self.kv_cache_groups:
                    assert len(live.pages) * self._size >= live.num_slots, "MAN-2: a slot without a page"
                for page in live.pages:
                    holders.setdefault(page.page_id, []).append(request_id)
                for page in live.pages[live.num_published :]:
                    assert page.page_hash is None, f"MAN-3: page {page.page_id} has a hash and is not published"
            for page in self.page_pool.pages[1:]:
                assert page.ref_cnt == len(holders.get(page.page_id, [])), (
                    f"POOL-2: page {page.page_id} is not held as counted"
                )
            for live in self._live.values():
                for page in live.pages[live.num_published :]:
                    assert page.ref_cnt == 1, (
                        f"R2: page {page.page_id} is written and shared by {holders[page.page_id]}"
                    )
        except AssertionError as error:
            state = "\n".join(f"{request_id}: {live}" for request_id, live in self._live.items())
            raise AssertionError(f"{error}\n{state}") from None


def _request_id(request: EngineRequest) -> str:
    """Reads the id of a request, and that it has all that is read of one (R1)."""
    for name in (
        "all_token_ids",
        "num_tokens",
        "num_computed_tokens",
        "status",
        "extra_keys",
        "sampling_params",
    ):
        attribute(request, name)
    request_id = attribute(request, "request_id")
    if not isinstance(request_id, str):
        raise refusal(TypeError, "R1", f"request.request_id={request_id!r} must be a str")
    return request_id


def _is_running(request: EngineRequest) -> bool:
    return getattr(request.status, "name", None) == EngineRequestStatus.RUNNING.name
