"""TAB-7: the arrays of one step for the caches of all layers: its sequences, their pages, and where new tokens go.

S is the number of rows of the page table, W of entries of a row, T of token rows of the step and n of update slices,
both with padding.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..declarations.documents import array_of, array_to_json, document, fields_of, parsed
from ..reading.arguments import integer, listed, refusal
from ..reading.array_arguments import INT32
from .cache_metadata import read_version

__all__ = ["RaggedPagesMetadata"]

_KIND = "RaggedPagesMetadata"
_REQUIRED = ("pages_tables", "context_lens", "query_start_loc", "num_seqs")
_OPTIONAL = ("slot_mapping", "position_ids", "request_distribution", "num_kv_update_slices")
_ARRAYS = (*_REQUIRED, *_OPTIONAL)
_SETTINGS = ("version", "num_slices_per_kv_cache_update_page", "page_size", "prefill_chunk_size")


@dataclasses.dataclass(frozen=True, eq=False)
class RaggedPagesMetadata:
    """The arrays of one step. A `MetadataBuilder` makes them.

    Attributes:
        pages_tables: page table, `i32[S, W]`; entries past the sequences and past their pages are not read.
        context_lens: number of tokens of each sequence, this step's included, `i32[S]`.
        query_start_loc: bounds of the sequences' token rows, `i32[S + 1]`.
        num_seqs: number of sequences, `i32[1]`; or `i32[S]`, of which the first entry is read.
        slot_mapping: slot of each token, `i32[T]`, or update slices, `i32[3, n]`; None: the slots that the page table
            has for the tokens' positions.
        position_ids: position of each token in its sequence, `i32[T]`.
        request_distribution: `i32[3]`: number of leading rows that have one token, the same number again (no row has
            a fixed chunk), number of sequences. A hint that no result depends on (ATT-5).
        num_kv_update_slices: number of columns of slices that are used, `i32[1]`; None if there are no slices.
        version: layout of the caches, ``v2`` or ``v3``.
        num_slices_per_kv_cache_update_page: divisor of n; None: not known.
        page_size: tokens in a page.
        prefill_chunk_size: an engine's setting; no result depends on it.
    """

    pages_tables: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    query_start_loc: NDArray[np.int32]
    num_seqs: NDArray[np.int32]
    slot_mapping: NDArray[np.int32] | None = None
    position_ids: NDArray[np.int32] | None = None
    request_distribution: NDArray[np.int32] | None = None
    num_kv_update_slices: NDArray[np.int32] | None = None
    version: str = "v3"
    num_slices_per_kv_cache_update_page: int | None = None
    page_size: int = 128
    prefill_chunk_size: int = 512

    @classmethod
    def create_empty(
        cls, num_tokens: int, max_num_reqs: int, max_pages: int, page_size: int = 128, version: str = "v3"
    ) -> Self:
        """The metadata of a step without sequences, which writes and reads nothing.

        Args:
            num_tokens: T.
            max_num_reqs: S.
            max_pages: W.
            page_size: tokens in a page.
            version: the layout of the caches.

        Raises:
            TypeError: an argument of a wrong type.
            ValueError: a size below 1, or no such layout (R1).
        """
        tokens = integer("num_tokens", num_tokens, minimum=1)
        rows = integer("max_num_reqs", max_num_reqs, minimum=1)
        return cls(
            pages_tables=np.zeros((rows, integer("max_pages", max_pages, minimum=1)), np.int32),
            context_lens=np.zeros(rows, np.int32),
            query_start_loc=np.zeros(rows + 1, np.int32),
            num_seqs=np.zeros(1, np.int32),
            slot_mapping=np.full(tokens, -1, np.int32),
            position_ids=np.zeros(tokens, np.int32),
            request_distribution=np.zeros(3, np.int32),
            version=read_version(version),
            page_size=integer("page_size", page_size, minimum=1),
        )

    @classmethod
    def stack(cls, shards: Iterable[Self]) -> Self:
        """The metadata of several page shards in one: each array joins theirs along the first axis (POOL-12, CACHE-5).

        Args:
            shards: the metadata of each shard, with the same shapes and settings.

        Raises:
            TypeError: an element is no metadata.
            ValueError: there is no shard, or shapes or settings differ (R1).
        """
        parts = listed("shards", shards)
        if not parts:
            raise refusal(ValueError, "R1", "shards=[] names no shard")
        for place, part in enumerate(parts):
            if not isinstance(part, RaggedPagesMetadata):
                raise refusal(
                    TypeError, "R1", f"shards[{place}] must be RaggedPagesMetadata, not {type(part).__name__}"
                )
            if part._outline() != parts[0]._outline():
                raise refusal(ValueError, "R1", f"shards[{place}] must be like shards[0] in shapes and settings")
        stacked = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in _ARRAYS
            if getattr(parts[0], name) is not None
        }
        whole: Self = dataclasses.replace(parts[0], **stacked)
        return whole

    def shard(self, number: int, num_shards: int) -> Self:
        """The metadata of one shard, out of metadata that `stack` joined (CACHE-5).

        Args:
            number: the number of the shard.
            num_shards: the number of shards.

        Raises:
            ValueError: an array can't be split evenly (R1).
        """
        parts = {}
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None:
                if len(array) % num_shards:
                    raise refusal(ValueError, "CACHE-5", f"{name}.shape={array.shape} must be of {num_shards} shards")
                size = len(array) // num_shards
                parts[name] = array[number * size : (number + 1) * size]
        return dataclasses.replace(self, **parts)

    def _outline(self) -> list[Any]:
        """The shapes, dtypes and settings, which shards must share."""
        arrays = [getattr(self, name) for name in _ARRAYS]
        return [
            *(None if array is None else (array.shape, array.dtype) for array in arrays),
            *(getattr(self, name) for name in _SETTINGS),
        ]

    # -- Copies and JSON --------------------------------------------------------------------------

    def replace(self, **kwargs: Any) -> Self:
        """A copy of the metadata with some fields replaced."""
        return dataclasses.replace(self, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The metadata as a document; see `documents`."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        fields = {name: None if array is None else array_to_json(array) for name, array in arrays.items()}
        return document(_KIND, {**fields, **{name: getattr(self, name) for name in _SETTINGS}})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The metadata from a document.

        Raises:
            TypeError: it is no mapping, or a setting is of a wrong type.
            ValueError: it is damaged (SEC-3), or a setting out of its bounds.
        """
        fields = fields_of(_KIND, data, (*_ARRAYS, *_SETTINGS))
        for name in _ARRAYS:
            if name in _REQUIRED or fields[name] is not None:
                fields[name] = array_of(name, fields[name], INT32).copy()
        fields["version"] = read_version(fields["version"])
        for name in _SETTINGS[1:]:
            if fields[name] is not None or name != "num_slices_per_kv_cache_update_page":
                fields[name] = integer(name, fields[name], minimum=1)
        return cls(**fields)

    def to_json(self, **kwargs: Any) -> str:
        """The document as text; ``kwargs`` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **kwargs)

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """The metadata from a text; see `from_dict`."""
        return cls.from_dict(parsed(json_str))
