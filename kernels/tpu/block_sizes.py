"""How large the decode kernel's blocks are: a table of what was measured, and a rule for what it lacks."""

from typing import NamedTuple

from jax.experimental.pallas import tpu as pltpu

__all__ = ["DecodeBlocks", "decode_blocks", "device_kind", "selects_16_bits"]


class DecodeBlocks(NamedTuple):
    """Block sizes of the decode kernel.

    Attributes:
        tokens: tokens of a block, a power of two and at least 128.
        buffers: blocks in VMEM: one is read, the others are in flight.
        short: smaller numbers of tokens, rising, for which the kernel has code of its own: it is taken where no block
            of a round has more tokens.
    """

    tokens: int
    buffers: int = 3
    short: tuple[int, ...] = ()


_BLOCK_WORDS = 512 * 8
"""Rows of words that a block should have: 2 MiB."""

_MEASURED: dict[tuple[str, str, int, int, int], DecodeBlocks] = {}
"""Device kind, dtype, KV heads, storage head size, page size: what the compiler's schedules are shortest for."""


def device_kind() -> str:
    """The kind of device that is compiled for, as `pltpu.ChipVersion` spells it; empty if that isn't known."""
    return str(pltpu.get_tpu_info().chip_version.value) if pltpu.is_tpu_device() else ""


def selects_16_bits() -> bool:
    """Whether the device compiled for chooses between 16-bit numbers in one operation."""
    return pltpu.is_tpu_device() and pltpu.get_tpu_info().generation >= 6


def decode_blocks(kind: str, dtype: str, groups: int, head_dim: int, page_size: int) -> DecodeBlocks:
    """The decode kernel's block sizes. O(1).

    Args:
        kind: the device kind, of `device_kind`.
        dtype: of the cache.
        groups: rows of words of a slot: KV heads, where head sizes are above 64.
        head_dim: the storage head size.
        page_size: slots of a page.

    Returns:
        What the table says; else blocks of about 2 MiB, of 128 to 2,048 tokens.
    """
    measured = _MEASURED.get((kind, dtype, groups, head_dim, page_size))
    if measured is not None:
        return measured
    tokens = 128
    while 2 * tokens * groups <= _BLOCK_WORDS and tokens < 2048:
        tokens *= 2
    tokens = max(tokens, page_size)
    return DecodeBlocks(tokens, short=tuple(size for size in (128, 256) if size < tokens))
