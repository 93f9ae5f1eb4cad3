"""The specification's manager: each redundancy of its state, damaged by hand, is seen by check()."""

from collections.abc import Callable
from typing import Any

import pytest

from kvproof import spec
from kvproof.spec.declarations import MambaSpec, SlidingWindowSpec

from ..strategies import PlainRequest


def _manager() -> Any:
    """Requests a and b in three groups of page size 2: full attention, a window of 2, states.

    a has 5 tokens, published as far as they are full; b hit a's first page, a null page and a's state after 2.
    """
    groups = [
        spec.CacheGroupSpec(spec.FullAttentionSpec(2, 1, 1, "float32")),
        spec.CacheGroupSpec(SlidingWindowSpec(2, 1, 1, "float32", 1)),
        spec.CacheGroupSpec(MambaSpec(2, ((1,),), ("float32",), "align")),
    ]
    manager = spec.CacheManager(20, groups, 12, hash_seed=b"s", retention_interval=None)
    first, second = PlainRequest("a", [1, 2, 3, 4, 5]), PlainRequest("b", [1, 2, 9])
    manager.allocate_slots(first, 2)
    pages, hit = manager.get_computed_pages(second)
    assert hit == 2
    first.num_computed_tokens = 2
    manager.allocate_slots(first, 3)
    manager.allocate_slots(second, 1, hit, pages)
    assert manager.get_page_ids("a") == ([1, 4, 5], [0, 6, 7], [3, 0, 8])
    assert manager.get_page_ids("b") == ([1, 9], [0, 10], [3, 11])
    manager.check()
    return manager


def _held(manager: Any, request_id: str, group: int) -> Any:
    return manager.coordinator.held[request_id][group]


def _set(request_id: str, group: int | None, name: str, value: object) -> Callable[[Any], object]:
    """Sets what is known of a request, or of its pages in a group."""
    return lambda manager: setattr(
        manager.coordinator.live.by_id[request_id] if group is None else _held(manager, request_id, group), name, value
    )


def _put(request_id: str, group: int, place: int, page_id: int) -> Callable[[Any], object]:
    """Puts another page at a place of a request's list."""
    return lambda manager: _held(manager, request_id, group).pages.__setitem__(place, manager.page_pool.pages[page_id])


def _share(manager: Any) -> None:
    """Request b holds a's last page in place of its own, and it is counted."""
    manager.page_pool.free_pages([_held(manager, "b", 0).pages.pop()])
    manager.page_pool.counts.of[5] += 1
    _held(manager, "b", 0).pages.append(manager.page_pool.pages[5])


MANAGER: dict[str, tuple[Callable[[Any], object], str]] = {
    "a damaged pool": (lambda manager: manager.page_pool.counts.of.__setitem__(0, 1), "POOL-1"),
    "pages of nobody": (lambda manager: manager.coordinator.live.by_id.pop("b"), "MAN-5"),
    "two requests in a slot": (_set("b", None, "slot", 0), "MAN-11"),
    "computed tokens without slots": (_set("a", None, "num_computed", 7), "MAN-8"),
    "more promised than slots": (_set("a", None, "num_promised", 6), "MAN-2"),
    "more slots than a model has": (_set("a", None, "num_slots", 13), "MAN-2"),
    "a slot without a page": (_set("a", None, "num_slots", 7), "MAN-2"),
    "more published than held": (_set("a", 0, "num_published", 4), "MAN-3"),
    "more hits than published": (_set("b", 0, "num_hits", 2), "MAN-3"),
    "a hash on an unpublished page": (_set("a", 0, "num_published", 1), "MAN-3"),
    "a null page where one is read": (_put("a", 1, 1, 0), "MAN-8"),
    "a page where none is read": (_put("a", 1, 0, 2), "MAN-8"),
    "a page held and not counted": (_put("a", 0, 2, 12), "POOL-2"),
    "a page counted and not held": (lambda manager: _held(manager, "b", 0).pages.pop(), "MAN-2"),
    "an unpublished page shared": (_share, "R2"),
    "a state at another place": (_set("a", 2, "states", {0: 2, 2: 7}), "MAN-13"),
    "a state that was never promised": (_set("b", 2, "states", {0: 2, 1: 4}), "MAN-13"),
    "a state without a page": (_set("a", 2, "states", {0: 2, 1: 3, 2: 5}), "MAN-8"),
    "a page without a state": (_set("a", 2, "states", {2: 5}), "MAN-8"),
    "a state that is cached amid a page": (_set("b", 2, "states", {0: 1, 1: 3}), "MAN-3"),
    "a state of attention": (_set("a", 0, "states", {2: 5}), "MAN-13"),
}


@pytest.mark.parametrize("damage", MANAGER)
def test_the_managers_check_sees(damage: str) -> None:
    manager = _manager()
    damaging, clause = MANAGER[damage]
    damaging(manager)
    with pytest.raises(AssertionError, match=rf"^{clause}"):
        manager.check()
