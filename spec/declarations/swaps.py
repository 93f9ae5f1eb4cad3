"""SWAP-1: what a manager wants copied between the device's pages and the host's."""

from typing import Literal, NamedTuple

__all__ = ["SwapCopy", "SwapPlan"]


class SwapCopy(NamedTuple):
    """One page to be copied.

    Attributes:
        group_id: the cache group.
        device_page: the page on the device.
        host_page: the page in host memory, in ``[0, num_host_pages)``.
        num_slots: how many of its first slots hold something; the others are dead, and zero in what leaves the
            device (SWAP-2). A state is copied whole: as many as its page has tokens.
    """

    group_id: int
    device_page: int
    host_page: int
    num_slots: int


class SwapPlan(NamedTuple):
    """The copies by which a request leaves the device or comes back to it.

    Attributes:
        swap_id: by which `CacheManager.swap_done` knows it; no two plans of a manager have the same.
        request_id: the request.
        direction: ``out`` for copies from the device to the host, ``in`` for copies back.
        num_tokens: the request's computed tokens, which its pages hold.
        copies: the copies, group by group, in the order of the pages in the request's lists.
    """

    swap_id: int
    request_id: str
    direction: Literal["out", "in"]
    num_tokens: int
    copies: tuple[SwapCopy, ...]
