"""MAN-7: cache groups: layers that share one page list a request. A model may mix groups of several kinds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike

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


def _key_value_bytes(spec: "FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec") -> int:
    """Bytes of the keys and values of a page's tokens, in one layer."""
    value_size = spec.head_size if spec.head_size_v is None else spec.head_size_v
    return spec.page_size * spec.num_kv_heads * (spec.head_size + value_size) * np.dtype(spec.dtype).itemsize


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
class FullAttentionSpec:
    """Layers that attend to every earlier position: a request keeps all of its pages.

    Attributes:
        page_size: tokens in a page.
        num_kv_heads: key/value heads.
        head_size: elements of one head of a key, and of a value unless ``head_size_v`` says otherwise.
        dtype: the element type of the cache.
        head_size_v: elements of one head of a value; None: ``head_size``.
    """

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike
    head_size_v: int | None = None

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: keys and values of ``page_size`` tokens."""
        return _key_value_bytes(self)

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:  # noqa: ARG002 - see CacheSpec
        """The most pages that a request holds at once; see `CacheSpec`."""
        return _cdiv(max_model_len, self.page_size)


@dataclass(frozen=True)
class SlidingWindowSpec:
    """Layers in which position p reads the keys j > p - ``sliding_window``: pages before these are freed.

    Attributes:
        page_size: tokens in a page.
        num_kv_heads: key/value heads.
        head_size: elements of one head of a key, and of a value unless ``head_size_v`` says otherwise.
        dtype: the element type of the cache.
        sliding_window: positions that a query reads, its own included; at least 1.
        head_size_v: elements of one head of a value; None: ``head_size``.
    """

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike
    sliding_window: int
    head_size_v: int | None = None

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: keys and values of ``page_size`` tokens."""
        return _key_value_bytes(self)

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most pages that a request holds at once: the window and a step's tokens, begun amid a page."""
        return _pages_of_span(self.page_size, self.sliding_window - 1 + max_num_batched_tokens, max_model_len)


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec:
    """Layers in which position p reads the keys j >= p // c * c of its own chunk of c = ``attention_chunk_size``.

    Attributes:
        page_size: tokens in a page.
        num_kv_heads: key/value heads.
        head_size: elements of one head of a key, and of a value unless ``head_size_v`` says otherwise.
        dtype: the element type of the cache.
        attention_chunk_size: positions of a chunk, at least 1.
        head_size_v: elements of one head of a value; None: ``head_size``.
    """

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike
    attention_chunk_size: int
    head_size_v: int | None = None

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: keys and values of ``page_size`` tokens."""
        return _key_value_bytes(self)

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most pages that a request holds at once: a chunk's tokens and a step's, begun amid a page."""
        return _pages_of_span(self.page_size, self.attention_chunk_size - 1 + max_num_batched_tokens, max_model_len)


@dataclass(frozen=True)
class MLAAttentionSpec:
    """Layers of multi-head latent attention: full attention over one latent vector a token in place of K and V.

    Attributes:
        page_size: tokens in a page.
        num_kv_heads: latent vectors a token, usually 1.
        head_size: elements of one of them, its rotary part included.
        dtype: the element type of the cache.
    """

    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one page of one layer: the latent vectors of ``page_size`` tokens."""
        return self.page_size * self.num_kv_heads * self.head_size * np.dtype(self.dtype).itemsize

    def max_num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:  # noqa: ARG002 - see CacheSpec
        """The most pages that a request holds at once; see `CacheSpec`."""
        return _cdiv(max_model_len, self.page_size)


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
