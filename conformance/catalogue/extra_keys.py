"""Faults of extra keys: what beside the tokens decides a page's content is left out of its key, or is ambiguous."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from kvproof.spec.declarations import (
    CacheSalt,
    ExtraKey,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
)

from .patching import with_coordinator
from .registry import FORESEEN, seeded

__all__: list[str] = []

_OTHERWISE = ("R2", "HASH-1", "MAN-1", "MAN-3", "MAN-6", "POOL-7")
"""By these clauses it shows where the key is seen before anybody hits its page."""

Change = Callable[[Sequence[ExtraKey], int], Sequence[ExtraKey]]
"""Makes of a request's extra keys those that enter its pages' keys, for pages of a given size."""


def _reading(fast: ModuleType, change: Change) -> SimpleNamespace:
    """A backend that finds and publishes pages by changed extra keys; what is refused is refused as before."""

    def segments_of(self: Any, extra_keys: Any) -> Any:
        right = fast.CacheCoordinator.segments_of(self, extra_keys)
        if not extra_keys:
            return right
        layouts = {
            size: fast.reading.extra_keys.extra_segments(tuple(dict.fromkeys(change(extra_keys, size))), size)
            for size in {group.rule.page_size for group in self.groups}
        }
        return [layouts[group.rule.page_size] for group in self.groups]

    return with_coordinator(fast, segments_of=segments_of)


# -- Left out -------------------------------------------------------------------------------------


@seeded(13, "HASH-2", "manager", also=_OTHERWISE, by=_reading)
def salt_ignored(extra_keys: Sequence[ExtraKey], _: int) -> Sequence[ExtraKey]:
    """A cache salt is accepted and enters no key: tenants hit each other's pages (EasyDeL, vLLM CVE-2025-46570)."""
    return [key for key in extra_keys if not isinstance(key, CacheSalt)]


@seeded(13, "HASH-2", "manager", also=_OTHERWISE, by=_reading)
def lora_ignored(extra_keys: Sequence[ExtraKey], _: int) -> Sequence[ExtraKey]:
    """A LoRA adapter enters no key: what was computed with it is hit without it (EasyDeL)."""
    return [key for key in extra_keys if not isinstance(key, LoraAdapter)]


@seeded(15, "HASH-2", "manager", also=_OTHERWISE, by="CacheCoordinator.admit")
def generated_pages_without_keys(
    fast: ModuleType, self: Any, request: Any, request_id: str, tokens: bytes, *args: Any
) -> Any:
    """Pages that fill up with generated tokens are hashed without the request's extra keys (EasyDeL)."""
    pages = fast.CacheCoordinator.admit(self, request, request_id, tokens, *args)
    if pages is not None:
        slot = self.live.slot_of[request_id]
        for group in self.groups:
            prompt = len(tokens) // 4 // group.rule.page_size
            own = group.segments[slot]
            of_prompt = [segment._replace(end=min(segment.end, prompt)) for segment in own]
            begins = [0, *(segment.end for segment in own)]
            kept = [segment for begin, segment in zip(begins, of_prompt, strict=False) if begin < prompt]
            group.segments[slot] = [*kept, *fast.reading.extra_keys.PLAIN]
    return pages


# -- Ambiguous ------------------------------------------------------------------------------------


@seeded(14, "HASH-2", "manager", also=_OTHERWISE)
def untagged_extra_keys(fast: ModuleType) -> SimpleNamespace:
    """Names enter the keys without their kinds: an adapter called like another request's salt shares its pages.

    So in vLLM 44701.
    """

    def value(key: Any) -> str:
        if isinstance(key, CacheSalt):
            return key.fingerprint.hex()
        return hashlib.sha256((key.name if isinstance(key, LoraAdapter) else key.version).encode()).hexdigest()

    def change(extra_keys: Sequence[ExtraKey], _: int) -> Sequence[ExtraKey]:
        names = [
            key for kind in (LoraAdapter, WeightsVersion, CacheSalt) for key in extra_keys if isinstance(key, kind)
        ]
        items = [key for key in extra_keys if isinstance(key, MultimodalItem | PromptEmbeddings)]
        return [*([WeightsVersion(" ".join(map(value, names)))] if names else []), *items]

    return _reading(fast, change)


@seeded(14, "HASH-2", "manager", also=_OTHERWISE, by=_reading)
def multimodal_without_offset(extra_keys: Sequence[ExtraKey], page_size: int) -> Sequence[ExtraKey]:
    """Multimodal content enters the keys of the pages that it touches without its offset in them (vLLM 36708)."""
    return [_whole_pages(key, page_size) if isinstance(key, MultimodalItem) else key for key in extra_keys]


def _whole_pages(item: MultimodalItem, page_size: int) -> MultimodalItem:
    """An item that fills all pages that it touches."""
    start = item.offset // page_size * page_size
    end = -(-(item.offset + item.length) // page_size) * page_size
    return dataclasses.replace(item, offset=start, length=end - start)


@seeded(14, "HASH-2", "manager", also=_OTHERWISE, by=_reading)
def sixteen_bits_of_an_image(extra_keys: Sequence[ExtraKey], _: int) -> Sequence[ExtraKey]:
    """Sixteen bits stand for an image, so that two of them may share pages (LMCache 3301)."""
    return [
        dataclasses.replace(key, content=key.content[:2]) if isinstance(key, MultimodalItem) else key
        for key in extra_keys
    ]


@seeded(FORESEEN, "HASH-2", "hash", by="hash_request_tokens")
def items_of_one_place_as_given(
    fast: ModuleType, hash_function: Any, page_size: Any, request: Any, **options: Any
) -> Any:
    """Two items that begin alike and are as long enter a key in the order in which the request names them."""
    keys, reading = fast.hash_request_tokens(hash_function, page_size, request, **options), fast.reading.extra_keys
    given = list(request.extra_keys or ())

    def as_given(segment: Any) -> Any:
        if segment.extra_keys is None:
            return segment
        own = tuple(sorted(segment.extra_keys, key=lambda key: (*reading._place(key)[:3], given.index(key))))
        return segment._replace(extra=reading.encode_extra_keys(own), extra_keys=own)

    segments = [as_given(segment) for segment in keys.segments]
    return fast.PageHashes(hash_function, keys.none_hash, page_size, keys.tokens, segments)
