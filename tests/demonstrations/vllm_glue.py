"""vLLM 0.33.0 with kvproof's manager in place of its `KVCacheManager`: what a user writes; vLLM stays as it is.

Its scheduler calls `Manager` as it calls its own. Left out, and refused by name where vLLM asks for them: KV connectors
and host offload, partial hits, look-ahead hashes, several context-parallel ranks, layers of other kinds than full,
sliding-window, chunked local and latent attention, and blocks that are zeroed before use.
"""

import dataclasses
import hashlib
import math
import operator
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.distributed.kv_events import (  # type: ignore[import-not-found]
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
)
from vllm.v1.core.kv_cache_manager import KVCacheManager  # type: ignore[import-not-found]
from vllm.v1.core.sched import scheduler  # type: ignore[import-not-found]
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found]
    FullAttentionSpec,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)
from vllm.v1.metrics.stats import PrefixCacheStats  # type: ignore[import-not-found]

from kvproof import fast
from kvproof.spec import CacheSalt, ExtraKey, LoraAdapter, MultimodalItem, PageStored, PromptEmbeddings

__all__ = ["Blocks", "Manager", "swap"]

KINDS = ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MLAAttentionSpec")
"""The kinds of layers that run: by vLLM's name, which is ours too."""

ADMISSION = ("WAITING", "PREEMPTED")
"""The statuses of requests that must leave the watermark free."""


class Seen:
    """A request of vLLM's as our manager reads it (`kvproof.spec.EngineRequest`).

    Its computed tokens are those whose step has ended: vLLM counts the ones in flight as computed, and takes those back
    that a draft model guessed wrong, which ours calls new tokens until they are certain (MAN-8).
    """

    __slots__ = (
        "all_token_ids",
        "extra_keys",
        "full_at",
        "num_computed_tokens",
        "num_slots",
        "request_id",
        "sampling_params",
        "slot",
        "theirs",
    )

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self.slot = self.full_at = self.num_slots = 0
        """Its slot in batched steps, how many tokens fill the page at hand, and how many have slots; 0: not known."""
        self.request_id = theirs.request_id
        self.all_token_ids: list[int] = theirs._all_token_ids  # the list that grows, without its read-only wrapper
        self.num_computed_tokens = 0
        self.extra_keys = _extra_keys(theirs)
        self.sampling_params = None  # vLLM itself leaves out the look-up of who wants log-probabilities of a prompt

    @property
    def num_tokens(self) -> int:
        """The number of its tokens."""
        return len(self.all_token_ids)

    @property
    def status(self) -> Any:
        """Its status, of the same name in vLLM."""
        return self.theirs.status


class Blocks:
    """Pages of a request as vLLM's scheduler reads its `KVCacheBlocks`.

    Args:
        ids: the page ids, a list for each group.
        pages: the pages, where they are hits that a request is to be admitted with.
    """

    __slots__ = ("ids", "pages")

    def __init__(self, ids: tuple[list[int], ...], pages: fast.CachePages | None = None) -> None:
        self.ids = ids
        self.pages = pages

    def get_block_ids(self, allow_none: bool = False, *, group_ids: Any = None) -> tuple[list[int], ...] | None:
        """The page ids, a list for each group; None if that is allowed and there are none."""
        if allow_none and not any(self.ids):
            return None
        return self.ids if group_ids is None else tuple(self.ids[group] for group in group_ids)


class Manager:
    """A manager of ours, called as vLLM's scheduler calls its own. Arguments as those of `KVCacheManager`."""

    names: Any = fast

    make_prefix_cache_stats = KVCacheManager.make_prefix_cache_stats
    record_prefix_cache_stats = KVCacheManager.record_prefix_cache_stats
    prefix_cache_lookup_enabled = KVCacheManager.prefix_cache_lookup_enabled

    def __init__(
        self,
        kv_cache_config: Any,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        watermark: float = 0.0,
        **others: Any,
    ) -> None:
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        _refuse_what_is_left_out(kv_cache_config, specs, scheduler_block_size, hash_block_size, others)
        groups = [self.names.CacheGroupSpec(_declared(spec), is_eagle_group=group.is_eagle_group)
                  for spec, group in zip(specs, kv_cache_config.kv_cache_groups, strict=True)]  # fmt: skip
        self.ours = self.names.CacheManager(
            kv_cache_config.num_blocks,
            groups,
            max_model_len,
            enable_caching=enable_caching,
            use_eagle=use_eagle,
            enable_events=enable_kv_cache_events,
        )
        self.enable_caching, self.log_stats = enable_caching, log_stats
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.max_model_len = max_model_len
        self.nothing = self.ours.create_empty_page_list()
        self.empty_kv_cache_blocks = Blocks(self.nothing.get_page_ids())
        most = max_model_len if max_in_flight_tokens is None else max_in_flight_tokens
        self.sizes = [(spec.block_size, _most_blocks(spec, most, max_model_len)) for spec in specs]
        """For each group the tokens of a page, and the most pages that a request holds at once."""
        keeps_all = all(isinstance(spec, FullAttentionSpec) for spec in specs)
        self.granule = math.gcd(*(spec.block_size for spec in specs)) if keeps_all else 0
        """The tokens at whose multiples a group fills or takes a page; 0 where windows or chunks give some back too."""
        self.kinds = [(get_kv_cache_spec_kind(spec).value, get_kv_cache_spec_sliding_window(spec)) for spec in specs]
        self.seen: dict[str, Seen] = {}
        """The requests that were looked up or admitted, until they finish."""
        self.filled: dict[str, tuple[int, int, int]] = {}
        """The slot, computed and promised tokens of each request that filled a page, until it is told to ours."""
        self.filled_now: dict[str, tuple[int, int, int]] = {}
        """Those of the step at hand."""
        self.taken: dict[str, Blocks] = {}
        """The pages that were taken for requests which have not asked yet."""
        self.most_in_step = most
        self.tells_events = enable_kv_cache_events
        self.coordinator = SimpleNamespace(
            single_type_managers=[SimpleNamespace(block_size=spec.block_size, kv_cache_spec=spec) for spec in specs],
            enable_partial_hash_hits=False,
        )

    # -- Each step --------------------------------------------------------------------------------

    def new_step_starts(self) -> None:
        """The requests that filled a page in the last step are likely to take one in this."""
        self.filled.update(self.filled_now)
        self.filled_now.clear()

    def get_computed_blocks(self, request: Any, max_cache_hit_length: int | None = None) -> tuple[Blocks, int, int]:
        """The cached blocks of a request that is to be admitted, their tokens, and no junction."""
        if max_cache_hit_length is not None:
            raise _left_out("max_cache_hit_length", max_cache_hit_length)
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        self._publish_filled()
        pages, num_tokens = self.ours.get_computed_pages(self._seen(request))
        if not num_tokens:
            return self.empty_kv_cache_blocks, 0, 0
        return Blocks(pages.get_page_ids(), pages), num_tokens, 0

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Blocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
        **others: Any,
    ) -> Blocks | None:
        """Slots for new tokens of a request; None if too few blocks are free."""
        for name, value in others.items():
            if value:  # external tokens, blocks that a connector fills later, encoder tokens
                raise _left_out(name, value)
        seen = self.seen.get(request.request_id)
        if seen is None or seen.theirs is not request:
            seen = self._seen(request)
        promised = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        if promised < seen.full_at and promised + num_lookahead_tokens <= seen.num_slots:
            return self.empty_kv_cache_blocks  # amid a page: nothing to take, to publish or to give back
        # those whose step has ended; what is left in flight of a request that gave way is no longer its own
        seen.num_computed_tokens = max(
            seen.num_computed_tokens, request.num_computed_tokens - request.num_in_flight_tokens
        )
        taken = None
        if seen.full_at and num_new_tokens == 1:  # a decode step that fills a page, or takes one
            if promised == seen.full_at < self.max_model_len and promised + num_lookahead_tokens <= seen.num_slots:
                self.filled_now[seen.request_id] = seen.slot, seen.num_computed_tokens, promised
                seen.full_at += self.granule
                return self.empty_kv_cache_blocks
            if seen.request_id in self.filled and not num_lookahead_tokens:
                self._take_for_filled()
        if seen.request_id in self.taken:
            taken = self.taken.pop(seen.request_id)
            seen.num_slots += self.granule
            if promised + num_lookahead_tokens <= seen.num_slots:
                return taken
        self.filled.pop(seen.request_id, None)  # the call below publishes what it filled
        self.filled_now.pop(seen.request_id, None)
        hits = None if new_computed_blocks is None else new_computed_blocks.pages
        fits = True
        if full_sequence_must_fit or self.watermark_blocks:
            kept = self.watermark_blocks if has_scheduled_reqs and request.status.name in ADMISSION else 0
            needed = promised + num_lookahead_tokens
            if full_sequence_must_fit:
                needed = max(seen.num_tokens, needed)
            fits = self._fits(seen, min(needed, self.max_model_len), hits, kept)
        ahead = num_lookahead_tokens
        if self.granule:  # the rest of the page at once: it takes no page more, and the steps until then no call
            ahead += -(promised + ahead) % self.granule
        new = promised - num_new_computed_tokens - seen.num_computed_tokens
        pages = self.ours.allocate_slots(seen, new, num_new_computed_tokens, hits, ahead) if fits else None
        if pages is None:
            if taken is not None:
                self.taken[seen.request_id] = taken
                seen.num_slots -= self.granule
            return None
        seen.num_computed_tokens += num_new_computed_tokens
        if self.granule:
            seen.slot = self.ours.slot_of(seen.request_id)
            seen.num_slots = promised + ahead
            seen.full_at = promised + self.granule - promised % self.granule
        if taken is not None:
            return Blocks(tuple(map(operator.add, taken.ids, pages.get_page_ids())))
        return self.empty_kv_cache_blocks if pages is self.nothing else Blocks(pages.get_page_ids())

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Publishes a request's full blocks up to these tokens."""
        if self.enable_caching:
            self._publish_filled()
            whole = num_computed_tokens // self.granule * self.granule if self.granule else num_computed_tokens
            self.ours.cache_pages(self.seen[request.request_id], whole)

    def free(self, request: Any) -> None:
        """Frees a request's blocks, the last one first; a finished request is forgotten."""
        self._publish_filled()
        seen = self._seen(request)
        self.taken.pop(seen.request_id, None)
        self.ours.free(seen)
        seen.full_at = seen.num_slots = seen.num_computed_tokens = 0
        if request.is_finished():
            self.ours.free_page_hashes(seen)
            del self.seen[request.request_id]

    # -- Between steps ----------------------------------------------------------------------------

    def get_blocks(self, request_id: str) -> Blocks:
        """All blocks of a request."""
        return Blocks(self.ours.get_page_ids(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of all blocks of a request, a list for each group."""
        ids: tuple[list[int], ...] = self.ours.get_page_ids(request_id)
        return ids

    def estimate_cached_tokens(self, request: Any) -> int:
        """The number of a request's tokens that are cached: those of its full blocks that every group has."""
        known = min(request.num_computed_tokens, request.num_tokens)
        return min(known // size * size for size, _ in self.sizes) if self.enable_caching else 0

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Drops the hashes of blocks."""
        self._publish_filled()
        self.ours.evict_pages(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, if no block is in use."""
        is_reset: bool = self.ours.reset_prefix_cache()
        if is_reset and self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return is_reset

    @property
    def usage(self) -> float:
        """The share of blocks in use, from 0.0 to 1.0."""
        return float(self.ours.usage)

    def take_events(self) -> list[Any]:
        """The events since the last call, as vLLM has them."""
        if self.tells_events:
            self._publish_filled()
        return [self._told(event) for event in self.ours.take_events()]

    def take_new_block_ids(self) -> list[int]:
        """No blocks are zeroed."""
        return []

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """No group has states."""
        return {}

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """No hit ends amid a block."""
        return [], []

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Zeros, as vLLM's own by now; ours counts when it is asked by a request (MAN-10)."""
        del running_request_id
        return [0] * len(self.sizes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"kvproof's manager under vLLM has no {name}: {_REASON}")

    # -- Inside -----------------------------------------------------------------------------------

    def _seen(self, request: Any) -> Seen:
        """Ours for one of vLLM's requests, the same until it finishes (MAN-6)."""
        seen = self.seen.get(request.request_id)
        if seen is None or seen.theirs is not request:
            seen = self.seen[request.request_id] = Seen(request)
        return seen

    def _take_for_filled(self) -> None:
        """Publishes the pages that were filled in earlier steps and takes the next one for each request: one call.

        Not if pages are so few that a request of this step may go without: then each takes its own in its turn.
        """
        free = self.ours.page_pool.get_num_free_pages()
        if free * self.granule >= self.most_in_step + 2 * len(self.seen) * self.granule:
            filled, self.filled = self.filled, {}
            batch = self._tell(filled, 1)
            for place, request_id in enumerate(filled):
                self.taken[request_id] = Blocks(batch.get_page_ids(place))

    def _publish_filled(self) -> None:
        """Publishes the pages that requests filled: before anything that could tell whether they are."""
        for filled in (self.filled, self.filled_now):
            if filled:
                self._tell(filled, 0)
                filled.clear()

    def _tell(self, filled: dict[str, tuple[int, int, int]], more: int) -> fast.SlotBatch:
        """One batched step of requests that filled a page, with ``more`` tokens and the rest of their page after it."""
        slots, computed, promised = np.array(list(filled.values())).T
        new, ahead = promised + more - computed, more * (self.granule - 1)
        batch: fast.SlotBatch = self.ours.allocate_slots_batch(slots, computed, new, ahead)
        return batch

    def _fits(self, seen: Seen, num_tokens: int, hits: Any, kept: int) -> bool:
        """Whether so many tokens of a request fit, and leave ``kept`` pages free: the gate of its admission."""
        found = (self.nothing if hits is None else hits).pages
        held = [max(map(len, lists)) for lists in zip(self.ours.get_page_ids(seen.request_id), found, strict=True)]
        needed: int = sum(
            max(0, min(-(-num_tokens // size), most) - have)
            for (size, most), have in zip(self.sizes, held, strict=True)
        )
        free: int = self.ours.page_pool.get_num_free_pages() - kept
        if needed + sum(map(len, found)) <= free:
            return True
        taken: int = sum(page.ref_cnt == 0 for own in found for page in own if not page.is_null)
        return needed + taken <= free

    def _told(self, event: Any) -> Any:
        """One of our events as vLLM tells it: without the page, with the kind of the group."""
        if not isinstance(event, PageStored):
            if not hasattr(event, "page_id"):
                return AllBlocksCleared()
            return BlockRemoved(block_hashes=[event.page_hash], medium=MEDIUM_GPU, group_idx=event.group_id)
        kind, window = self.kinds[event.group_id]
        adapters = [key.name for key in event.extra_keys or () if isinstance(key, LoraAdapter)]
        return BlockStored(
            block_hashes=[event.page_hash],
            parent_block_hash=event.parent_hash,
            token_ids=list(event.token_ids),
            block_size=len(event.token_ids),
            lora_id=None,
            medium=MEDIUM_GPU,
            lora_name=adapters[0] if adapters else None,
            group_idx=event.group_id,
            kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=window,
        )


_REASON = (
    "connectors, host offload, partial hits and layers with states are left out of tests/demonstrations/vllm_glue.py"
)


def _left_out(name: str, value: object) -> ValueError:
    return ValueError(f"{name}={value!r}: {_REASON}")


def _refuse_what_is_left_out(
    config: Any, specs: list[Any], scheduled: int, hashed: int, others: dict[str, Any]
) -> None:
    """Refuses options that ours does not serve under vLLM; those that ask for nothing are passed over."""
    for name, value in others.items():
        if value not in (None, 0, False, 1 if name.endswith("world_size") else 0):
            raise _left_out(name, value)
    for spec in specs:
        if type(spec).__name__ not in KINDS or spec.prefix_replay_tokens or vars(spec).get("extra_retained_tokens"):
            raise _left_out("kv_cache_spec", spec)
    if hashed != scheduled and any(spec.block_size % hashed for spec in specs):
        raise _left_out("hash_block_size", hashed)
    if config.needs_kv_cache_zeroing:
        raise _left_out("needs_kv_cache_zeroing", True)


def _declared(theirs: Any) -> Any:
    """A kind of layers by our class of its name, whose fields have the same names but for the size of a page."""
    ours = getattr(fast, type(theirs).__name__)
    given = {"page_size": theirs.block_size} | {
        field.name: getattr(theirs, field.name) for field in dataclasses.fields(ours) if hasattr(theirs, field.name)
    }
    return ours(**{**given, "dtype": str(theirs.dtype).removeprefix("torch.")})


def _most_blocks(spec: Any, max_in_flight_tokens: int, max_model_len: int) -> int:
    """The most pages that a request of a kind holds at once; windows and chunks give back what they have passed."""
    counted = getattr(spec, "max_admission_blocks_per_request", None)
    return int(counted(max_in_flight_tokens, max_model_len)) if counted else -(-max_model_len // spec.block_size)


def _extra_keys(request: Any) -> tuple[ExtraKey, ...]:
    """What beside tokens decides the content of a request's pages: its salt, adapter, images and embeddings."""
    keys: list[ExtraKey] = [
        MultimodalItem(item.identifier.encode(), item.mm_position.offset, item.mm_position.length)
        for item in request.mm_features
    ]
    if request.cache_salt:
        keys.append(CacheSalt(request.cache_salt))
    if request.lora_request:
        keys.append(LoraAdapter(request.lora_request.name))
    if request.prompt_embeds is not None:
        content = hashlib.sha256(request.prompt_embeds.contiguous().view(-1).numpy().tobytes()).digest()
        keys.append(PromptEmbeddings(content, 0, request.num_prompt_tokens))
    return tuple(keys)


def swap() -> None:
    """From here on vLLM's schedulers make ours."""
    scheduler.KVCacheManager = Manager
