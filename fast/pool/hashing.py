"""HASH: keys over contiguous token buffers.

The encoding is the contract's (HASH-1), computed for speed: a page's message is its parent's digest, the
encoded extra keys (one zero byte where there are none) and a slice of the request's token bytes, so that a
chain costs one digest and two concatenations a page.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, HashFunction, sha256
from kvproof.spec.declarations.keys import PageHash, PageHashWithGroupId, digest_of

from ..reading.arguments import attribute, integer, refusal
from ..reading.extra_keys import ExtraSegment, encode_extra_keys, extra_segments
from ..reading.tokens import TokenBytes, Tokens, token_bytes

__all__ = [
    "NONE_HASH",
    "PageHash",
    "PageHashWithGroupId",
    "PageHashes",
    "digest_chain",
    "hash_page_tokens",
    "hash_request_tokens",
    "init_none_hash",
    "page_digest",
    "root_of",
    "sha256",
    "token_tuple",
    "token_tuples",
]

_DOMAIN = b"kvproof page key 2"


def init_none_hash(seed: bytes | None = None, hash_function: HashFunction = sha256) -> bytes:
    """The root of a chain of keys: what stands for the parent of a first page (HASH-1).

    Args:
        seed: any bytes; the same seed gives the same root in every process. None draws 32 random bytes.
        hash_function: the hash of the chain.

    Returns:
        The root's digest.
    """
    return root_of("seed", seed, hash_function)


def root_of(name: str, seed: bytes | None, hash_function: HashFunction) -> bytes:
    """`init_none_hash` of an argument that has a name of its own, which a refusal tells (R1)."""
    if seed is None:
        seed = os.urandom(32)
    if not isinstance(seed, bytes):
        raise refusal(TypeError, "R1", f"{name} must be bytes or None, not {type(seed).__name__}")
    return digest_of(hash_function, _DOMAIN + seed)


NONE_HASH: bytes = init_none_hash()
"""The default root of this module's free functions; it differs from process to process."""


def page_digest(hash_function: HashFunction, parent: bytes, extra: bytes, tokens: bytes) -> bytes:
    """The digest of one page, from its parent's, its encoded extra keys (empty: none) and its token bytes (HASH-1)."""
    return digest_of(hash_function, parent + (extra or b"\x00") + tokens)


def digest_chain(
    hash_function: HashFunction,
    digest: bytes,
    page_bytes: int,
    tokens: bytes,
    segments: Sequence[ExtraSegment],
    start: int = 0,
) -> list[bytes]:
    """The digests of pages in a row (HASH-1). One digest a page.

    Args:
        hash_function: bytes in, bytes out.
        digest: that of the page before the first, or the root.
        page_bytes: bytes of a page's tokens.
        tokens: the token bytes of whole pages.
        segments: the request's extra keys over its pages.
        start: the place of the first page in the request.
    """
    digests: list[bytes] = []
    add = digests.append
    place, stop = start, start + len(tokens) // page_bytes
    for segment in segments:
        end = min(segment.end, stop)
        extra = segment.extra or b"\x00"
        offsets = range((place - start) * page_bytes, (end - start) * page_bytes, page_bytes)
        if hash_function is sha256:  # saves a call a page: without it a page of 16 tokens takes 1.2 times as long
            sha = hashlib.sha256
            for offset in offsets:
                digest = sha(digest + extra + tokens[offset : offset + page_bytes]).digest()
                add(digest)
        else:
            for offset in offsets:
                digest = digest_of(hash_function, digest + extra + tokens[offset : offset + page_bytes])
                add(digest)
        place = max(place, end)
    return digests


def hash_page_tokens(
    hash_function: HashFunction,
    parent_page_hash: bytes | None,
    curr_page_token_ids: Tokens,
    extra_keys: tuple[Any, ...] | None = None,
    *,
    none_hash: bytes = NONE_HASH,
) -> PageHash:
    """The key of one full page (HASH-1, HASH-2). O(tokens).

    Args:
        hash_function: bytes in, bytes out.
        parent_page_hash: the digest of the page before; None, and nothing else, for a first page.
        curr_page_token_ids: the page's tokens, `i32[page_size]` or a sequence of ints.
        extra_keys: the extra keys that touch the page; None if there are none.
        none_hash: the root of the chain, see `init_none_hash`.

    Raises:
        TypeError: a digest is not bytes, tokens are not ints, an extra key has no encoding.
    """
    _require_root(none_hash)
    parent = none_hash if parent_page_hash is None else parent_page_hash
    if not isinstance(parent, bytes):
        raise refusal(TypeError, "HASH-1", f"parent_page_hash={parent!r} must be bytes or None")
    tokens = token_bytes("curr_page_token_ids", curr_page_token_ids)
    digest = page_digest(hash_function, parent, encode_extra_keys(extra_keys), tokens)
    return PageHash(digest, token_tuple(tokens), extra_keys)


class PageHashes(Sequence[PageHash]):
    """The keys of a request's full pages: digests are computed at once, `PageHash` tuples when they are read.

    Immutable, and equal to any sequence of the same keys.
    """

    __slots__ = ("digests", "hash_function", "none_hash", "page_size", "segments", "tokens")

    def __init__(
        self,
        hash_function: HashFunction,
        none_hash: bytes,
        page_size: int,
        tokens: bytes,
        segments: Sequence[ExtraSegment],
    ) -> None:
        self.hash_function = hash_function
        self.none_hash = none_hash
        self.page_size = page_size
        self.segments = segments
        size = 4 * page_size
        num_pages = len(tokens) // size
        self.tokens = tokens[: num_pages * size]
        self.digests = digest_chain(hash_function, none_hash, size, self.tokens, segments)

    def agrees(self, other_tokens: TokenBytes, segments: Sequence[ExtraSegment], num_pages: int) -> bool:
        """True if the first ``num_pages`` keys, or all, are of these tokens and extra keys. O(tokens), no digest."""
        num_pages = min(num_pages, len(self.digests))
        if num_pages == 0:
            return True
        same = other_tokens[: 4 * self.page_size * num_pages]
        return (
            len(same) == 4 * self.page_size * num_pages
            and self.tokens.startswith(same)
            and _same_extras(self.segments, segments, num_pages)
        )

    def __len__(self) -> int:
        return len(self.digests)

    @overload
    def __getitem__(self, place: int) -> PageHash: ...
    @overload
    def __getitem__(self, place: slice) -> list[PageHash]: ...
    def __getitem__(self, place: int | slice) -> PageHash | list[PageHash]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        size = 4 * self.page_size
        segment = next(segment for segment in self.segments if place < segment.end)
        return PageHash(
            self.digests[place], token_tuple(self.tokens[place * size : (place + 1) * size]), segment.extra_keys
        )

    def __iter__(self) -> Iterator[PageHash]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"PageHashes({len(self)} pages of {self.page_size} tokens)"


def _same_extras(mine: Sequence[ExtraSegment], theirs: Sequence[ExtraSegment], num_pages: int) -> bool:
    ends = sorted({min(segment.end, num_pages) for segment in (*mine, *theirs)})
    return all(
        next(s for s in mine if end <= s.end).extra == next(s for s in theirs if end <= s.end).extra for end in ends
    )


def hash_request_tokens(
    hash_function: HashFunction, page_size: int, request: EngineRequest, *, none_hash: bytes = NONE_HASH
) -> PageHashes:
    """The keys of a request's full pages, in order (HASH-3). One digest a page.

    Args:
        hash_function: bytes in, bytes out.
        page_size: tokens in a page.
        request: the request; the tokens of prompt and output are read.
        none_hash: the root of the chain, see `init_none_hash`.
    """
    page_size = integer("page_size", page_size, minimum=1)
    _require_root(none_hash)
    tokens = token_bytes("request.all_token_ids", attribute(request, "all_token_ids"))
    segments = extra_segments(attribute(request, "extra_keys"), page_size)
    return PageHashes(hash_function, none_hash, page_size, tokens, segments)


def _require_root(none_hash: object) -> None:
    if not isinstance(none_hash, bytes):
        raise refusal(TypeError, "HASH-1", f"none_hash={none_hash!r} must be bytes")


def token_tuple(tokens: bytes) -> tuple[int, ...]:
    """The token ids in token bytes."""
    values: NDArray[np.int32] = np.frombuffer(tokens, "<i4")
    return tuple(values.tolist())


def token_tuples(tokens: bytes, num_pages: int) -> list[tuple[int, ...]]:
    """The token ids in the token bytes of ``num_pages`` pages, one tuple a page."""
    return list(struct.iter_unpack(f"<{len(tokens) // 4 // num_pages}i", tokens)) if num_pages else []
