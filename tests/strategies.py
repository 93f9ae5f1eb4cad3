"""What the tests draw: small worlds, in which prefixes meet, and every kind of argument a caller may bring."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvproof.spec.declarations import (
    CacheGroupSpec,
    CacheSalt,
    ChunkedLocalAttentionSpec,
    EngineRequestStatus,
    ExtraKey,
    FullAttentionSpec,
    LoraAdapter,
    MambaSpec,
    MLAAttentionSpec,
    MultimodalItem,
    PromptEmbeddings,
    SamplingParams,
    SlidingWindowSpec,
    WeightsVersion,
)

__all__ = [
    "PlainRequest",
    "extra_keys",
    "few_extra_keys",
    "generic_values",
    "group_mixes",
    "page_sizes",
    "plain_requests",
    "short_token_lists",
    "spelled",
    "spellings",
    "token_lists",
    "tokens",
]

page_sizes = st.integers(1, 4)

tokens = st.one_of(st.sampled_from([0, 1, -1, -2, 2**31 - 1, -(2**31)]), st.integers(-(2**31), 2**31 - 1))
"""Token ids over the whole int32, those that some hash has mistaken for something else among them (HASH-1)."""

token_lists = st.lists(tokens, max_size=24)

short_token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=14)
"""Few lists of two tokens, so that prefixes are shared."""

generic_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3) | st.binary(max_size=3),
    lambda values: st.lists(values, max_size=3).map(tuple),
    max_leaves=6,
)
"""Values that have an encoding as extra keys, beside the declared kinds (HASH-2)."""


@st.composite
def extra_keys(draw: st.DrawFn) -> tuple[ExtraKey, ...]:
    """A request's extra keys of every kind, in any order, the same text under different kinds (HASH-2)."""
    names = st.sampled_from(["", "a", "b"])
    keys: list[ExtraKey] = [
        kind(draw(names)) for kind in (CacheSalt, LoraAdapter, WeightsVersion) if draw(st.integers(0, 2)) == 0
    ]
    for kind in (MultimodalItem, PromptEmbeddings):
        places = st.tuples(st.sampled_from([b"", b"a", b"b"]), st.integers(0, 9), st.integers(1, 6))
        keys += [kind(*place) for place in draw(st.lists(places, max_size=2, unique=True))]
    return tuple(draw(st.permutations(keys)))


few_extra_keys: st.SearchStrategy[tuple[ExtraKey, ...]] = st.sampled_from(
    [
        (),
        (),
        (CacheSalt("a"),),
        (LoraAdapter("a"),),
        (MultimodalItem(b"a", 0, 1),),
        (MultimodalItem(b"a", 1, 2),),
        (MultimodalItem(b"a", 1, 2), PromptEmbeddings(b"a", 5, 1)),
    ]
)
"""Few, so that requests with the same ones meet."""

spellings = st.sampled_from([list, tuple, np.int32, np.int64, np.uint64, "numpy ints"])
"""How an engine may keep its tokens; see `spelled`."""


def spelled(values: Sequence[int], spelling: Any) -> Any:
    """Token ids as a list, a tuple, an array of some type, or a list of numpy's ints (R1)."""
    if spelling in (list, tuple):
        return spelling(values)
    if spelling == "numpy ints":
        return [np.int32(value) for value in values]
    return np.array(values, np.int64 if min(values, default=0) < 0 and spelling is np.uint64 else spelling)


@dataclass
class PlainRequest:
    """An engine's own request: its tokens lie in whatever the engine keeps them in."""

    request_id: str
    all_token_ids: Any
    extra_keys: Sequence[ExtraKey] | None = ()
    sampling_params: SamplingParams | None = None
    num_computed_tokens: int = 0
    status: Any = EngineRequestStatus.RUNNING

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def append(self, token_id: int) -> None:
        """Adds one token."""
        self.grow([token_id])

    def grow(self, values: Sequence[int]) -> None:
        """Adds tokens in the spelling that the request has; a list grows in place."""
        if isinstance(self.all_token_ids, np.ndarray):
            self.all_token_ids = np.concatenate([self.all_token_ids, np.array(values, self.all_token_ids.dtype)])
        else:
            self.all_token_ids += type(self.all_token_ids)(values)


@st.composite
def plain_requests(draw: st.DrawFn, request_id: str = "r") -> PlainRequest:
    """An engine's own request with tokens over the whole int32 and any extra keys."""
    return PlainRequest(request_id, spelled(draw(token_lists), draw(spellings)), draw(extra_keys()))


@st.composite
def cache_groups(draw: st.DrawFn) -> CacheGroupSpec:
    """A cache group of any kind, with windows and chunks below and above the page, multiples of it or not (MAN-7)."""
    size, span = draw(page_sizes), draw(st.integers(1, 9))
    numbers: tuple[int, int, int, str] = (size, 1, 8, "float32")
    kind = draw(st.sampled_from(["full", "window", "chunk", "MLA", "states", "window", "chunk", "one state"]))
    match kind:
        case "full":
            return CacheGroupSpec(FullAttentionSpec(*numbers))
        case "window":
            return CacheGroupSpec(SlidingWindowSpec(*numbers, sliding_window=span))
        case "chunk":
            return CacheGroupSpec(ChunkedLocalAttentionSpec(*numbers, attention_chunk_size=span))
        case "MLA":
            return CacheGroupSpec(MLAAttentionSpec(*numbers))
    mode: Any = "align" if kind == "states" else "none"
    return CacheGroupSpec(MambaSpec(size, ((2,),), ("float32",), mode))


group_mixes = st.lists(cache_groups(), min_size=1, max_size=3)
"""One to three cache groups, of any kinds and page sizes (MAN-7)."""
