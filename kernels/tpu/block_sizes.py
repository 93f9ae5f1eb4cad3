"""How large the decode kernel's blocks are: what `block_table` has measured, and a rule for what it lacks."""

from typing import NamedTuple

from jax.experimental.pallas import tpu as pltpu

from .block_table import measured_keys

__all__ = [
    "DecodeBlocks",
    "blocks_of_drafts",
    "blocks_of_keys",
    "decode_blocks",
    "device_kind",
    "has_wide_products",
    "selects_16_bits",
]


class DecodeBlocks(NamedTuple):
    """Block sizes of the decode kernel.

    Attributes:
        tokens: tokens of a block, a power of two and at least 128.
        buffers: blocks in VMEM, at least 3: of one the keys are read, of the one before the values, the others are in
            flight.
        short: smaller numbers of tokens, rising, for which the kernel has code of its own: it is taken where no block
            of a round has more tokens.
    """

    tokens: int
    buffers: int = 4
    short: tuple[int, ...] = ()

    @property
    def ahead(self) -> int:
        """Blocks that are in flight where one of them is waited for."""
        return self.buffers - 2


_WORD_ROW = 512
"""Bytes of a row of 128 words."""

_BLOCK_BYTES = 2 * 2**20
"""What a block should have: 512 tokens of 8 heads; 1,024 need as many bundles for a token, 256 a quarter more."""

_BLOCK_PAGES = 64
"""Pages of a block at most: for each there is code to start its copy."""

_IN_FLIGHT = 2**20
"""Bytes that should be in flight while a block is waited for."""

_MOST_BUFFERS = 6


def device_kind() -> str:
    """The kind of device that is compiled for, as `pltpu.ChipVersion` spells it; empty if that isn't known."""
    return str(pltpu.get_tpu_info().chip_version.value) if pltpu.is_tpu_device() else ""


def selects_16_bits() -> bool:
    """Whether the device compiled for chooses between 16-bit numbers in one operation."""
    return pltpu.is_tpu_device() and pltpu.get_tpu_info().generation >= 6


def has_wide_products() -> bool:
    """Whether the matrix unit compiled for has 256 columns; interpreted kernels do as the newest devices do."""
    return not pltpu.is_tpu_device() or pltpu.get_tpu_info().mxu_column_size == 256


def decode_blocks(kind: str, dtype: str, groups: int, page_size: int) -> DecodeBlocks:
    """The decode kernel's block sizes. O(1).

    Small blocks, of few heads or of short pages, get more buffers, so that enough is in flight.

    Args:
        kind: the device kind, of `device_kind`.
        dtype: of the cache.
        groups: rows of 128 words of a slot: of bfloat16 KV heads, where head sizes are above 64 and at most 128.
        page_size: slots of a page.

    Returns:
        Of the size that the table says; else blocks of 2 MiB, of 128 to 1,024 tokens and at most 64 pages.
    """
    measured = measured_keys(kind, dtype, groups, page_size)
    if measured is not None:
        return blocks_of_keys(measured, groups)
    most = min(1024, _BLOCK_BYTES // (_WORD_ROW * groups), _BLOCK_PAGES * page_size)
    return blocks_of_keys(max(128, page_size, 1 << (max(most, 1).bit_length() - 1)), groups)


def blocks_of_keys(tokens: int, groups: int) -> DecodeBlocks:
    """Blocks of a size, with the buffers that keep enough bytes in flight, and code for shorter blocks. O(1).

    Args:
        tokens: a power of two of at least 128, whole pages.
        groups: as in `decode_blocks`.
    """
    ahead = -(-_IN_FLIGHT // (_WORD_ROW * groups * tokens))
    return DecodeBlocks(
        tokens,
        buffers=min(max(3 + ahead, 4), _MOST_BUFFERS),
        short=tuple(size for size in (128, 256) if size < tokens),
    )


def blocks_of_drafts(blocks: DecodeBlocks, page_size: int) -> DecodeBlocks:
    """The block sizes where sequences have several query tokens: longer blocks, and less code for short ones. O(1).

    The latency of softmaxes over many rows is hidden in long blocks only: for 8 query tokens on v6e, blocks of 256, 512
    and 1,024 tokens took 394, 302 and 275 bundles for 128 tokens.

    Args:
        blocks: the sizes for one query token.
        page_size: slots of a page.
    """
    tokens = min(2 * blocks.tokens, max(1024, blocks.tokens), max(_BLOCK_PAGES * page_size, blocks.tokens))
    return DecodeBlocks(tokens, short=(256,) if tokens > 256 else ())
