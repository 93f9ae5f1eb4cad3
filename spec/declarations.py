"""What both packages agree on before either computes anything: what a request shows, and the cache groups.

Nothing here computes; ``kvproof.fast`` imports this module of the specification and no other.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = [
    "CacheGroupSpec",
    "CacheSalt",
    "EngineRequest",
    "EngineRequestStatus",
    "ExtraKey",
    "FullAttentionSpec",
    "HashFunction",
    "LoraAdapter",
    "MultimodalItem",
    "PromptEmbeddings",
    "Request",
    "SamplingParams",
    "WeightsVersion",
]


class HashFunction(Protocol):
    """A hash over bytes: ``bytes in, bytes out``, without state (HASH-1)."""

    def __call__(self, message: bytes, /) -> bytes:
        """The digest of a message."""
        ...


# -- Extra keys (HASH-2): what decides, beside the tokens, what a page's K/V are ------------------


@dataclass(frozen=True)
class CacheSalt:
    """Separates tenants: requests with different salts share nothing. Its value is never printed (SEC-2)."""

    value: str = field(repr=False)


@dataclass(frozen=True)
class LoraAdapter:
    """The LoRA adapter that the request runs with."""

    name: str


@dataclass(frozen=True)
class WeightsVersion:
    """The version of the model's weights."""

    version: str


@dataclass(frozen=True)
class MultimodalItem:
    """Multimodal content that stands in for the tokens ``[offset, offset + length)`` of the request.

    Attributes:
        content: a digest of the content (an image, a clip), wide enough never to collide.
        offset: the position of its first placeholder token.
        length: how many tokens it stands for, at least 1.
    """

    content: bytes
    offset: int
    length: int


@dataclass(frozen=True)
class PromptEmbeddings:
    """Embeddings given in place of the tokens ``[offset, offset + length)``; ``content`` is their digest."""

    content: bytes
    offset: int
    length: int


ExtraKey = CacheSalt | LoraAdapter | WeightsVersion | MultimodalItem | PromptEmbeddings
"""One extra key. A request has at most one salt, one adapter and one version, and any number of items."""


# -- Requests -------------------------------------------------------------------------------------


class EngineRequestStatus(enum.Enum):
    """Where a request stands. Any enumeration of the engine's own will do: members are told by their names."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


class SupportsPromptLogprobs(Protocol):
    """The one sampling parameter that matters to a cache."""

    @property
    def prompt_logprobs(self) -> int | None:
        """Log-probabilities wanted for the prompt; not None keeps the request from hitting (MAN-1)."""
        ...


class EngineRequest(Protocol):
    """What the cache reads of an engine's request. It never writes to one.

    While a request is live (between its first ``allocate_slots`` and its ``free``) one object stands for it,
    and its tokens and extra keys only grow (MAN-6).
    """

    @property
    def request_id(self) -> str:
        """The request's id, unique among live requests."""
        ...

    @property
    def all_token_ids(self) -> Sequence[int] | NDArray[np.int32]:
        """Prompt and accepted output tokens, `i32[num_tokens]` or a sequence of ints. An array costs less."""
        ...

    @property
    def num_tokens(self) -> int:
        """The length of ``all_token_ids``."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose K/V are in the cache, accepted ones only (MAN-8); 0 before admission."""
        ...

    @property
    def status(self) -> Any:
        """A member named ``RUNNING`` while the request runs (MAN-10)."""
        ...

    @property
    def extra_keys(self) -> Sequence[ExtraKey] | None:
        """What beside the tokens decides the content of the request's pages (HASH-2)."""
        ...

    @property
    def sampling_params(self) -> SupportsPromptLogprobs | None:
        """The request's sampling parameters, of which ``prompt_logprobs`` is read (MAN-1)."""
        ...


@dataclass(frozen=True)
class SamplingParams:
    """A minimal carrier of ``prompt_logprobs``, for those who bring no sampling parameters of their own."""

    prompt_logprobs: int | None = None


class Request:
    """A complete, minimal `EngineRequest`, for tests, replays and engines that have none of their own.

    Its tokens lie in one growing int32 buffer, so that the cache reads them without a conversion.

    Args:
        request_id: the request's id.
        token_ids: its prompt, a sequence of ints or an integer array.
        extra_keys: its extra keys.
        prompt_logprobs: how many log-probabilities are wanted for prompt tokens, or None.
    """

    __slots__ = (
        "_buffer",
        "extra_keys",
        "num_computed_tokens",
        "num_tokens",
        "request_id",
        "sampling_params",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        token_ids: Sequence[int] | NDArray[np.int32],
        extra_keys: Iterable[ExtraKey] = (),
        prompt_logprobs: int | None = None,
    ) -> None:
        tokens = np.asarray(token_ids)
        if tokens.size and tokens.dtype.kind not in "iu":
            raise TypeError(f"token_ids must be integers, not {tokens.dtype}")
        if tokens.size and (tokens.min() < -(2**31) or tokens.max() >= 2**31):
            raise ValueError(f"token_ids must fit an int32, they span [{tokens.min()}, {tokens.max()}]")
        self.request_id = request_id
        self._buffer: NDArray[np.int32] = tokens.astype(np.int32)
        self.num_tokens = len(self._buffer)
        self.num_computed_tokens = 0
        self.status = EngineRequestStatus.WAITING
        self.extra_keys: tuple[ExtraKey, ...] = tuple(extra_keys)
        self.sampling_params = SamplingParams(prompt_logprobs)

    @property
    def all_token_ids(self) -> NDArray[np.int32]:
        """A view of the tokens so far, `i32[num_tokens]`."""
        return self._buffer[: self.num_tokens]

    def append(self, token_id: int) -> None:
        """Adds a generated token. O(1) amortised."""
        if self.num_tokens == len(self._buffer):
            grown = np.zeros(2 * self.num_tokens + 16, np.int32)
            grown[: self.num_tokens] = self._buffer
            self._buffer = grown
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1

    def __repr__(self) -> str:
        return (
            f"Request(request_id={self.request_id!r}, num_tokens={self.num_tokens}, "
            f"num_computed_tokens={self.num_computed_tokens}, status={self.status.name})"
        )


# -- Cache groups ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FullAttentionSpec:
    """A layer that attends to every earlier position: a request keeps all of its pages.

    Attributes:
        page_size: tokens in a page.
        num_kv_heads: key/value heads.
        head_size: elements of one head of a key or a value.
        dtype: the element type of the cache.
    """

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: keys and values of ``page_size`` tokens."""
        return 2 * self.page_size * self.num_kv_heads * self.head_size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class CacheGroupSpec:
    """Layers that share one page table.

    Attributes:
        kv_cache_spec: what the layers' caches look like.
        layer_names: the layers of the group.
    """

    kv_cache_spec: FullAttentionSpec
    layer_names: tuple[str, ...] = ()
