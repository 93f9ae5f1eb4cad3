"""TAB-7: the arrays of one step for the caches of all layers: their names, shapes and document."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .cache_metadata import read_version
from .documents import Saved, array_from_json, array_to_json, document, fields_of
from .reading import INT32, index, instance, integer, listed, refusal

__all__ = ["ARRAYS", "SETTINGS", "StepArrays"]

Array = TypeVar("Array")

_KIND = "RaggedPagesMetadata"
_REQUIRED = ("pages_tables", "context_lens", "query_start_loc", "num_seqs")
ARRAYS = (*_REQUIRED, "slot_mapping", "position_ids", "request_distribution", "num_kv_update_slices")
"""The fields that are arrays, in order."""
SETTINGS = ("version", "num_slices_per_kv_cache_update_page", "page_size", "prefill_chunk_size")
"""The fields that are numbers and texts: a program is compiled for their values."""


@dataclasses.dataclass(frozen=True, eq=False)
class StepArrays(Saved, Generic[Array]):
    """The arrays of one step: which pages, how many tokens, and where new ones go. A `MetadataBuilder` makes them.

    S is the number of rows of the page table, W of entries of a row, T of token rows of the step and n of update
    slices, both with padding.

    Attributes:
        pages_tables: page table, `i32[S, W]`; entries past the sequences and past their pages are not read (ATT-4).
        context_lens: number of tokens of each sequence, this step's included, `i32[S]`.
        query_start_loc: bounds of the sequences' token rows, `i32[S + 1]`.
        num_seqs: number of sequences, `i32[1]`; or `i32[S]`, of which the first entry is read.
        slot_mapping: slot of each token, `i32[T]`, -1 for none; or update slices, `i32[3, n]` (first slot, first token,
            length); None: the slots that the page table has for the tokens' positions.
        position_ids: position of each token in its sequence, `i32[T]`.
        request_distribution: `i32[3]`: number of leading rows that have one token, the same number again (no row has
            a fixed chunk), number of sequences. A hint that no result depends on (ATT-5).
        num_kv_update_slices: number of columns of slices that are used, `i32[1]`; None if there are no slices.
        version: layout of the caches, ``v2`` or ``v3``.
        num_slices_per_kv_cache_update_page: divisor of n; None: not known.
        page_size: tokens in a page.
        prefill_chunk_size: an engine's setting; no result depends on it.
    """

    pages_tables: Array
    context_lens: Array
    query_start_loc: Array
    num_seqs: Array
    slot_mapping: Array | None = None
    position_ids: Array | None = None
    request_distribution: Array | None = None
    num_kv_update_slices: Array | None = None
    version: str = "v3"
    num_slices_per_kv_cache_update_page: int | None = None
    page_size: int = 128
    prefill_chunk_size: int = 512

    @staticmethod
    @abstractmethod
    def _made(array: NDArray[Any]) -> Any:
        """An array of the host's as the package keeps it."""

    @staticmethod
    @abstractmethod
    def _on_host(array: Any) -> NDArray[Any]:
        """An array of the package's as the host's."""

    @classmethod
    def create_empty(
        cls, num_tokens: int, max_num_reqs: int, max_pages: int, page_size: int = 128, version: str = "v3"
    ) -> Self:
        """The metadata of a step without sequences, which writes and reads nothing. O(its size).

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
        shapes = {
            "pages_tables": (rows, integer("max_pages", max_pages, minimum=1)),
            "context_lens": (rows,),
            "query_start_loc": (rows + 1,),
            "num_seqs": (1,),
            "position_ids": (tokens,),
            "request_distribution": (3,),
        }
        return cls(
            **{name: cls._made(np.zeros(shape, np.int32)) for name, shape in shapes.items()},
            slot_mapping=cls._made(np.full(tokens, -1, np.int32)),
            version=read_version(version),
            page_size=integer("page_size", page_size, minimum=1),
        )

    # -- Shards -----------------------------------------------------------------------------------

    @classmethod
    def read_shards(cls, shards: Iterable[Self]) -> list[Self]:
        """Reads the metadata of several page shards, which are to have the same shapes and settings (R1).

        Raises:
            TypeError: an element is no metadata.
            ValueError: there is no shard, or shapes or settings differ.
        """
        parts = [instance(f"shards[{place}]", part, cls) for place, part in enumerate(listed("shards", shards))]
        if not parts:
            raise refusal(ValueError, "R1", "shards=[] names no shard")
        for place, part in enumerate(parts):
            if part.outline() != parts[0].outline():
                raise refusal(ValueError, "R1", f"shards[{place}] must be like shards[0] in shapes and settings")
        return parts

    def outline(self) -> list[Any]:
        """The shapes, dtypes and settings: those for which a program is compiled."""
        arrays = [getattr(self, name) for name in ARRAYS]
        return [
            *(None if array is None else (array.shape, array.dtype) for array in arrays),
            *(getattr(self, name) for name in SETTINGS),
        ]

    def require_shard(self, number: int, num_shards: int) -> None:
        """Refuses the number of a shard that does not exist, and shards that are not equally large (R1).

        Raises:
            TypeError: an argument is no integer.
            IndexError: there is no such shard.
            ValueError: an array can't be split evenly.
        """
        index("number", number, integer("num_shards", num_shards, minimum=1))
        for name in ARRAYS:
            array = getattr(self, name)
            if array is not None and array.shape[0] % num_shards:
                raise refusal(ValueError, "CACHE-5", f"{name}.shape={array.shape} must be of {num_shards} shards")

    # -- Documents --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The metadata as a document; see `documents`. Waits for the device. O(size)."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        fields = {name: None if own is None else array_to_json(self._on_host(own)) for name, own in arrays.items()}
        return document(_KIND, {**fields, **{name: getattr(self, name) for name in SETTINGS}})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads a document; see `Saved.from_dict`. O(size)."""
        fields = fields_of(_KIND, data, (*ARRAYS, *SETTINGS))
        values: dict[str, Any] = {name: part.value for name, part in fields.items()}
        for name in ARRAYS:
            if name in _REQUIRED or values[name] is not None:
                values[name] = cls._made(array_from_json(fields[name], INT32))
        values["version"] = read_version(values["version"])
        for name in SETTINGS[1:]:
            if values[name] is not None or name != "num_slices_per_kv_cache_update_page":
                values[name] = integer(name, values[name], minimum=1)
        return cls(**values)
