"""vLLM's blocks and its queue of free ones, as pages."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from .vllm import VLLM

__all__ = ["CachePage", "FreeCachePageQueue", "Key", "block_of", "blocks_of", "pages_of"]

_utils = VLLM.module("vllm.v1.core.kv_cache_utils")


class Key(NamedTuple):
    """A block's hash and the group that it was cached for, which vLLM packs into one string of bytes."""

    page_hash: bytes
    group_id: int


class CachePage:
    """A block under our names. All views of a block are equal, and it is what they hash by.

    Args:
        page_id: the number of a block made by hand.
        block: the block to look at; None makes one.
    """

    __slots__ = ("block",)

    def __init__(self, page_id: Any, *, block: Any = None) -> None:
        self.block = _utils.KVCacheBlock(page_id) if block is None else block

    def __eq__(self, other: object) -> bool:
        return self.block is other.block if isinstance(other, CachePage) else NotImplemented

    def __hash__(self) -> int:
        return id(self.block)

    def __repr__(self) -> str:
        return repr(self.block)

    @property
    def page_id(self) -> int:
        """See ``block_id``."""
        return int(self.block.block_id)

    @property
    def ref_cnt(self) -> int:
        """See ``ref_cnt``."""
        return int(self.block.ref_cnt)

    @ref_cnt.setter
    def ref_cnt(self, count: Any) -> None:
        self.block.ref_cnt = count

    @property
    def is_null(self) -> bool:
        """See ``is_null``."""
        return bool(self.block.is_null)

    @property
    def page_hash(self) -> Key | None:
        """See ``block_hash``."""
        return None if self.block.block_hash is None else key_of(self.block.block_hash)

    def reset_hash(self) -> None:
        """See ``reset_hash``."""
        self.block.reset_hash()

    @property
    def prev_free_page(self) -> "CachePage | None":
        """See ``prev_free_block``."""
        return page_of(self.block.prev_free_block)

    @property
    def next_free_page(self) -> "CachePage | None":
        """See ``next_free_block``."""
        return page_of(self.block.next_free_block)


def key_of(block_hash: Any) -> Key:
    """A packed hash, unpacked."""
    return Key(_utils.get_block_hash(block_hash), _utils.get_group_id(block_hash))


def page_of(block: Any) -> CachePage | None:
    """A block as a page; None is none."""
    return None if block is None else CachePage(block.block_id, block=block)


def pages_of(blocks: Iterable[Any]) -> list[CachePage]:
    """Blocks as pages."""
    return [CachePage(block.block_id, block=block) for block in blocks]


def block_of(page: Any) -> Any:
    """The block of a page; other objects are handed on as they are."""
    return page.block if isinstance(page, CachePage) else page


def blocks_of(pages: Iterable[Any]) -> list[Any]:
    """The blocks of pages."""
    return [block_of(page) for page in pages]


class FreeCachePageQueue:
    """vLLM's ``FreeKVCacheBlockQueue``.

    Args:
        pages: the pages that stand in it at first.
        queue: the queue to look at; None makes one.
    """

    def __init__(self, pages: Iterable[Any], *, queue: Any = None) -> None:
        self.queue = _utils.FreeKVCacheBlockQueue(blocks_of(pages)) if queue is None else queue

    @property
    def num_free_pages(self) -> int:
        """See ``num_free_blocks``."""
        return int(self.queue.num_free_blocks)

    @property
    def fake_free_list_head(self) -> CachePage | None:
        """See ``fake_free_list_head``."""
        return page_of(self.queue.fake_free_list_head)

    @property
    def fake_free_list_tail(self) -> CachePage | None:
        """See ``fake_free_list_tail``."""
        return page_of(self.queue.fake_free_list_tail)

    def popleft(self) -> CachePage | None:
        """See ``popleft``."""
        return page_of(self.queue.popleft())

    def popleft_n(self, n: Any) -> list[CachePage]:
        """See ``popleft_n``."""
        return pages_of(self.queue.popleft_n(n))

    def remove(self, page: Any) -> None:
        """See ``remove``."""
        self.queue.remove(block_of(page))

    def append(self, page: Any) -> None:
        """See ``append``."""
        self.queue.append(block_of(page))

    def append_n(self, pages: Iterable[Any]) -> None:
        """See ``append_n``."""
        self.queue.append_n(blocks_of(pages))

    def prepend_n(self, pages: Iterable[Any]) -> None:
        """See ``prepend_n``."""
        self.queue.prepend_n(blocks_of(pages))

    def get_all_free_pages(self) -> list[CachePage]:
        """See ``get_all_free_blocks``."""
        return pages_of(self.queue.get_all_free_blocks())
