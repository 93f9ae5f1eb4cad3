"""SWAP-1: the copies between device pages and host pages that a manager plans."""

from typing import Literal, NamedTuple

__all__ = ["SwapCopy", "SwapPlan"]


class SwapCopy(NamedTuple):
    """One page to be copied.

    Attributes:
        group_id: the cache group.
        device_page: the page on the device.
        host_page: the page in host memory, in ``[0, num_host_pages)``.
        num_slots: the number of leading slots that are live; the others are dead, and are zeros in pages that leave
            the device (SWAP-2). For a state, which is copied whole, it is the page size.
    """

    group_id: int
    device_page: int
    host_page: int
    num_slots: int


class SwapPlan(NamedTuple):
    """The copies by which a request leaves the device or comes back to it.

    Attributes:
        swap_id: the number that `CacheManager.swap_done` takes, unique among a manager's plans.
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
