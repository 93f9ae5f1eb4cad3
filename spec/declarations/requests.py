"""What the cache reads of a request, and a minimal request class."""

import enum
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .extra_keys import ExtraKey
from .reading import shown

__all__ = ["EngineRequest", "EngineRequestStatus", "Request", "SamplingParams", "SupportsPromptLogprobs"]


class EngineRequestStatus(enum.Enum):
    """The status of a request. An engine may use any other enumeration: only the name ``RUNNING`` is read."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


class SupportsPromptLogprobs(Protocol):
    """The one sampling parameter that the cache reads."""

    @property
    def prompt_logprobs(self) -> int | None:
        """The number of log-probabilities for each prompt token; the request hits nothing unless it is None (MAN-1)."""
        ...


class EngineRequest(Protocol):
    """What the cache reads of an engine's request. It never writes to one.

    While a request is live (from its first ``allocate_slots`` to its ``free``), it must be the same object, and its
    tokens and extra keys may only grow (MAN-6). The engine must ensure that: a page is published under the tokens that
    the request has when the page is full, so if they had changed, others would hit what the old tokens gave.
    """

    @property
    def request_id(self) -> str:
        """The request's id, unique among live requests."""
        ...

    @property
    def all_token_ids(self) -> Sequence[int] | NDArray[np.integer[Any]]:
        """Prompt and accepted output tokens: a sequence of ints, or an integer array `[num_tokens]`.

        A contiguous int32 array costs least.
        """
        ...

    @property
    def num_tokens(self) -> int:
        """The length of ``all_token_ids``."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """The number of leading tokens whose K/V are in the cache, accepted ones only (MAN-8); 0 before admission."""
        ...

    @property
    def status(self) -> Any:
        """A member named ``RUNNING`` while the request runs (MAN-10)."""
        ...

    @property
    def extra_keys(self) -> Sequence[ExtraKey] | None:
        """The extra keys, which decide the content of the request's pages beside its tokens (HASH-2)."""
        ...

    @property
    def sampling_params(self) -> SupportsPromptLogprobs | None:
        """The request's sampling parameters, of which ``prompt_logprobs`` is read (MAN-1)."""
        ...


@dataclass(frozen=True)
class SamplingParams:
    """Minimal sampling parameters, for `Request`."""

    prompt_logprobs: int | None = None


class Request:
    """A minimal `EngineRequest`, for tests, replays and engines without a request class.

    Its tokens lie in one growing int32 buffer, so that the cache reads them without a conversion.

    Args:
        request_id: the request's id.
        token_ids: its prompt, a sequence of ints or an integer array.
        extra_keys: its extra keys.
        prompt_logprobs: the number of log-probabilities for each prompt token, or None.
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
        """Adds a generated token, an int32. O(1) amortised."""
        if not -(2**31) <= operator.index(token_id) < 2**31:
            raise ValueError(f"token_id={shown(token_id)} must fit an int32")
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
