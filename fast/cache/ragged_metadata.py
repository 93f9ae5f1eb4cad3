"""The arrays of a step that update and attention read: tables, lengths and slots of a ragged batch's tokens.

S is the number of rows of the page table, W its width, T the number of tokens with padding, n the number of slices
with padding.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from kvproof.spec.declarations.documents import array_of, document, fields_of, parsed

from ..reading.arguments import index, integer, listed, refusal
from .documents import device_array_to_json

__all__ = ["RaggedPagesMetadata", "read_version"]

_ARRAYS = (
    "pages_tables",
    "context_lens",
    "query_start_loc",
    "num_seqs",
    "slot_mapping",
    "position_ids",
    "request_distribution",
    "num_kv_update_slices",
)
_INT32 = np.dtype(np.int32)
_STATIC = ("version", "num_slices_per_kv_cache_update_page", "page_size", "prefill_chunk_size")


def read_version(version: object) -> str:
    """Reads the name of a layout (R1).

    Raises:
        TypeError: it is no str.
        ValueError: it is neither ``"v2"`` nor ``"v3"``.
    """
    if not isinstance(version, str):
        raise refusal(TypeError, "R1", f"version={version!r} must be a str")
    if version not in ("v2", "v3"):
        raise refusal(ValueError, "R1", f"version={version!r} must be 'v2' or 'v3'")
    return version


@partial(jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=_STATIC)
@dataclasses.dataclass(frozen=True, eq=False)
class RaggedPagesMetadata:
    """The arrays of one step: which pages, how many tokens, and where new ones go. A pytree.

    Fields that are not arrays are static: a program is compiled for their values. Made by `MetadataBuilder`.

    Attributes:
        pages_tables: `i32[S, W]`: the page table; rows past the sequences and entries past a row's pages may
            hold anything (ATT-4).
        context_lens: `i32[S]`: the number of tokens of each sequence, with those of this step.
        query_start_loc: `i32[S + 1]`: the index of each sequence's first token in the batch, then their total.
        num_seqs: `i32[1]`: the number of sequences; or `i32[S]`, of which the first counts, as the seed has it.
        slot_mapping: `i32[T]`: the slot of each token, -1 for none; or `i32[3, n]`: slices (first slot, first
            token, length); None: token t of a sequence goes where the table has its position.
        position_ids: `i32[T]`: each token's position in its sequence.
        request_distribution: `i32[3]`: ends of the leading rows with one token, of those with a fixed chunk
            (there are none), and of all rows. Nothing here depends on it (ATT-5).
        num_kv_update_slices: `i32[1]`: the number of columns in use of a `slot_mapping` of slices.
        version: ``"v2"`` or ``"v3"``.
        num_slices_per_kv_cache_update_page: the number that n is a multiple of; None without slices.
        page_size: tokens in a page.
        prefill_chunk_size: not used; kept for compatibility.
    """

    pages_tables: jax.Array
    context_lens: jax.Array
    query_start_loc: jax.Array
    num_seqs: jax.Array
    slot_mapping: jax.Array | None = None
    position_ids: jax.Array | None = None
    request_distribution: jax.Array | None = None
    num_kv_update_slices: jax.Array | None = None
    version: str = "v3"
    num_slices_per_kv_cache_update_page: int | None = None
    page_size: int = 128
    prefill_chunk_size: int = 512

    @classmethod
    def create_empty(
        cls, num_tokens: int, max_num_reqs: int, max_pages: int, page_size: int = 128, version: str = "v3"
    ) -> Self:
        """The metadata of a step without sequences: it writes nothing and attends to nothing. O(its size).

        Args:
            num_tokens: T.
            max_num_reqs: S.
            max_pages: W.
            page_size: tokens in a page.
            version: ``"v2"`` or ``"v3"``.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: a size is below 1, or there is no such version (R1).
        """
        tokens = integer("num_tokens", num_tokens, minimum=1)
        rows = integer("max_num_reqs", max_num_reqs, minimum=1)
        return cls(
            pages_tables=jnp.zeros((rows, integer("max_pages", max_pages, minimum=1)), jnp.int32),
            context_lens=jnp.zeros(rows, jnp.int32),
            query_start_loc=jnp.zeros(rows + 1, jnp.int32),
            num_seqs=jnp.zeros(1, jnp.int32),
            slot_mapping=jnp.full(tokens, -1, jnp.int32),
            position_ids=jnp.zeros(tokens, jnp.int32),
            request_distribution=jnp.zeros(3, jnp.int32),
            version=read_version(version),
            page_size=integer("page_size", page_size, minimum=1),
        )

    @classmethod
    def stack(cls, shards: Sequence[Self]) -> Self:
        """The metadata of several data shards as one: arrays one behind the other (POOL-12, CACHE-5). O(their size).

        Shard i of a mesh's data axis reads part i. The batch's tokens stand in the same order: T of the first
        shard, then T of the next.

        Args:
            shards: the metadata of each shard, all of the same shapes and static fields.

        Raises:
            TypeError: one is no RaggedPagesMetadata.
            ValueError: there is none, or they differ in a shape or static field (R1).
        """
        parts = listed("shards", shards)
        if not parts:
            raise refusal(ValueError, "R1", "shards=[] names no shard")
        for place, part in enumerate(parts):
            if not isinstance(part, cls):
                raise refusal(TypeError, "R1", f"shards[{place}]={type(part).__name__} must be RaggedPagesMetadata")
            if _shapes(part) != _shapes(parts[0]):
                raise refusal(ValueError, "R1", f"shards[{place}] must have the shapes of shards[0]")
        stacked: Self = _concatenated(parts)
        return stacked

    def shard(self, number: int, num_shards: int) -> Self:
        """The metadata of one of the shards that were stacked (CACHE-5). O(its size).

        Args:
            number: the number of the shard.
            num_shards: the number of shards that were stacked.

        Raises:
            TypeError: an argument is no integer.
            IndexError: there is no such shard.
            ValueError: an array can't be split into as many (R1).
        """
        shards = integer("num_shards", num_shards, minimum=1)
        place = index("number", number, shards)
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None and array.shape[0] % shards:
                raise refusal(ValueError, "CACHE-5", f"{name}.shape={array.shape} must be of {shards} shards")

        def part(array: jax.Array) -> jax.Array:
            size = array.shape[0] // shards
            return array[place * size : (place + 1) * size]

        own: Self = jax.tree.map(part, self)
        return own

    def replace(self, **kwargs: Any) -> Self:
        """The same with other values in the fields named. O(1).

        Raises:
            TypeError: there is no such field.
        """
        return dataclasses.replace(self, **kwargs)

    # -- JSON -------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON document; see `documents`. Waits for the device. O(size)."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return document(
            "RaggedPagesMetadata",
            {
                **{name: None if array is None else device_array_to_json(array) for name, array in arrays.items()},
                **{name: getattr(self, name) for name in _STATIC},
            },
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` of this class or the specification's wrote. O(size).

        Raises:
            TypeError: ``data`` is no mapping, or a field is of the wrong type.
            ValueError: it is damaged (SEC-3).
        """
        fields = fields_of("RaggedPagesMetadata", data, (*_ARRAYS, *_STATIC))
        arrays = {
            name: None if fields[name] is None and place > 3 else jnp.array(array_of(name, fields[name], _INT32))
            for place, name in enumerate(_ARRAYS)
        }
        slices = fields["num_slices_per_kv_cache_update_page"]
        return cls(
            **arrays,  # type: ignore[arg-type]
            version=read_version(fields["version"]),
            num_slices_per_kv_cache_update_page=None
            if slices is None
            else integer("num_slices_per_kv_cache_update_page", slices, minimum=1),
            page_size=integer("page_size", fields["page_size"], minimum=1),
            prefill_chunk_size=integer("prefill_chunk_size", fields["prefill_chunk_size"], minimum=1),
        )

    def to_json(self, **kwargs: Any) -> str:
        """`to_dict` as text; ``kwargs`` are those of `json.dumps`. O(size)."""
        return json.dumps(self.to_dict(), **kwargs)

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """Reads what `to_json` wrote; errors are those of `from_dict`. O(size)."""
        return cls.from_dict(parsed(json_str))


def _shapes(part: RaggedPagesMetadata) -> Any:
    leaves, structure = jax.tree.flatten(part)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


@jax.jit
def _concatenated(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
