"""MAN-7: cache groups: layers that share one page list a request. A model may mix groups of several kinds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike

from .cache_dtypes import spelled_out

__all__ = [
    "AttentionSpec",
    "CacheGroupSpec",
    "CacheSpec",
    "ChunkedLocalAttentionSpec",
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowSpec",
]


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _pages_of_span(page_size: int, num_tokens: int, max_model_len: int) -> int:
    """The most pages that ``num_tokens`` consecutive positions below ``max_model_len`` touch."""
    begun_amid_a_page = min(num_tokens, max_model_len) + page_size - 1
    return min(_cdiv(begun_amid_a_page, page_size), _cdiv(max_model_len, page_size))


class CacheSpec(Protocol):
    """The properties that every kind of group has."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer."""
        ...

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most pages that a request of ``max_model_len`` tokens holds at once, in one layer.

        Args:
            max_model_len: the request's tokens, look-ahead included.
            max_num_batched_tokens: the most new tokens of the request in one step, look-ahead included.
        """
        ...


@dataclass(frozen=True)
class _TokenLayers:
    """Layers that store something for every token.

    Attributes:
        page_size: tokens in a page.
        num_kv_heads: key/value heads; of MLA latent vectors a token, usually 1.
        head_size: elements of one head of a key, and of a value unless ``head_size_v`` says otherwise; of MLA those of
            a latent vector, its rotary part included.
        dtype: the element type of the cache: a dtype, or a name or code as `RaggedPagesCacheMetaData.create` takes it.
    """

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", spelled_out(self.dtype))

    def _page_bytes(self, elements: int) -> int:
        """Bytes of a page of one layer, from the elements that a token has in each head."""
        return self.page_size * self.num_kv_heads * elements * np.dtype(self.dtype).itemsize

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:  # noqa: ARG002 - see CacheSpec
        """The most pages that a request holds at once: all of its tokens' pages; see `CacheSpec`."""
        return _cdiv(max_model_len, self.page_size)


class _KeysAndValues(_TokenLayers):
    """Layers that store a key and a value for every token."""

    head_size_v: int | None

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: keys and values of ``page_size`` tokens."""
        return self._page_bytes(self.head_size + (self.head_size if self.head_size_v is None else self.head_size_v))


@dataclass(frozen=True)
class FullAttentionSpec(_KeysAndValues):
    """Layers that attend to every earlier position: a request keeps all of its pages.

    Attributes, beside ``page_size``, ``num_kv_heads``, ``head_size`` and ``dtype``:
        head_size_v: elements of one head of a value; None: ``head_size``.
    """

    head_size_v: int | None = None


@dataclass(frozen=True)
class SlidingWindowSpec(_KeysAndValues):
    """Layers in which position p reads the keys j > p - ``sliding_window``: pages before these are freed.

    Attributes, beside those of `FullAttentionSpec`:
        sliding_window: positions that a query reads, its own included; at least 1.
    """

    sliding_window: int
    head_size_v: int | None = None

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most pages that a request holds at once: the window and a step's tokens, begun amid a page."""
        return _pages_of_span(self.page_size, self.sliding_window - 1 + max_num_batched_tokens, max_model_len)


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(_KeysAndValues):
    """Layers in which position p reads the keys j >= p // c * c of its own chunk of c = ``attention_chunk_size``.

    Attributes, beside those of `FullAttentionSpec`:
        attention_chunk_size: positions of a chunk, at least 1.
    """

    attention_chunk_size: int
    head_size_v: int | None = None

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most pages that a request holds at once: a chunk's tokens and a step's, begun amid a page."""
        return _pages_of_span(self.page_size, self.attention_chunk_size - 1 + max_num_batched_tokens, max_model_len)


@dataclass(frozen=True)
class MLAAttentionSpec(_TokenLayers):
    """Layers of multi-head latent attention: full attention over one latent vector a token in place of K and V."""

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: the latent vectors of ``page_size`` tokens."""
        return self._page_bytes(self.head_size)


@dataclass(frozen=True)
class MambaSpec:
    """Layers with a state in place of keys and values: a page holds the state after some number of tokens (MAN-13).

    Attributes:
        page_size: tokens between the boundaries at which states can be published.
        shapes: the shapes of the state's arrays (convolution, recurrence, ...).
        dtypes: their element types.
        mamba_cache_mode: ``none``: one page a request, advanced in place, never published. ``align``: states at
            page boundaries on which a step ends are kept and published.
        page_size_padded: bytes of a page where it is made larger, to be as large as another group's; None: not.
    """

    page_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DTypeLike, ...]
    mamba_cache_mode: Literal["none", "align"] = "none"
    page_size_padded: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dtypes, tuple):
            object.__setattr__(self, "dtypes", tuple(map(spelled_out, self.dtypes)))

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return sum(prod(shape) * np.dtype(kind).itemsize for shape, kind in zip(self.shapes, self.dtypes, strict=True))

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: one state, padded where that was asked for."""
        return self.state_bytes if self.page_size_padded is None else self.page_size_padded

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:  # noqa: ARG002 - see CacheSpec
        """The most pages that a request holds at once: one for its state, one for the state it was copied from."""
        return 2 if self.mamba_cache_mode == "align" and max_model_len > self.page_size else 1


AttentionSpec = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MLAAttentionSpec
"""The kinds of attention, which store something for every token."""


@dataclass(frozen=True)
class CacheGroupSpec:
    """Layers that share one page list a request, and so one page table.

    Attributes:
        kv_cache_spec: kind and sizes of the layers' caches.
        layer_names: the layers of the group; None if the names are not needed: then it counts as one layer.
        is_eagle_group: whether an Eagle draft model's layers are in the group (MAN-9).
    """

    kv_cache_spec: AttentionSpec | MambaSpec
    layer_names: Sequence[str] | None = None
    is_eagle_group: bool = False

    def max_memory_usage_bytes(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most memory that a request can need in this group, in bytes, over all of its layers.

        Args:
            max_model_len: the request's tokens, look-ahead included.
            max_num_batched_tokens: the most new tokens of the request in one step, look-ahead included.
        """
        layers = 1 if self.layer_names is None else len(self.layer_names)
        pages = self.kv_cache_spec.max_num_pages(max_model_len, max_num_batched_tokens)
        return layers * pages * self.kv_cache_spec.page_size_bytes
