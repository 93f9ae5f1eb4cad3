"""R1: what an engine's request does when its id is read cannot tear a manager's state, in either package."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvproof import fast, spec


class BrokenError(Exception):
    """What a request raises when its id is read too often."""


class Treacherous:
    """A request whose id can be read so many times only, and then raises."""

    num_computed_tokens = 0
    status = spec.EngineRequestStatus.RUNNING
    extra_keys = ()
    sampling_params = None

    def __init__(self, request_id: str, length: int) -> None:
        self._id = request_id
        self.all_token_ids = np.arange(length, dtype=np.int32)
        self.reads_left = 1_000

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def request_id(self) -> str:
        if not self.reads_left:
            raise BrokenError
        self.reads_left -= 1
        return self._id


class Hostile(str):
    """An id that can be neither compared nor hashed."""

    __slots__ = ()

    def __eq__(self, _: object) -> bool:
        raise BrokenError

    def __hash__(self) -> int:
        raise BrokenError


def admit(manager: Any, request: Treacherous) -> None:
    request.num_computed_tokens = 0
    pages, hit = manager.get_computed_pages(request)
    assert manager.allocate_slots(request, 5 - hit, hit, pages) is not None


def step(manager: Any, request: Treacherous) -> None:
    request.num_computed_tokens = 5
    assert manager.allocate_slots(request, 4) is not None


def publish(manager: Any, request: Treacherous) -> None:
    manager.cache_pages(request, 8)


def swap_out(manager: Any, request: Treacherous) -> None:
    request.num_computed_tokens = 9
    assert manager.swap_out(request) is not None


def fence(manager: Any, _: Treacherous) -> None:
    manager.swap_done(manager.next_swap)


def swap_in(manager: Any, request: Treacherous) -> None:
    assert manager.swap_in(request) is not None


def free(manager: Any, request: Treacherous) -> None:
    manager.free(request)


def withdraw(manager: Any, request: Treacherous) -> None:
    manager.free(request, num_written=0)


def finish(manager: Any, request: Treacherous) -> None:
    manager.free_page_hashes(request)


LIVES: dict[str, list[Callable[[Any, Treacherous], None]]] = {
    "a step": [admit, step, publish, free, finish],
    "gone before its step": [admit, step, withdraw, admit, free],
    "out and back": [admit, step, swap_out, fence, swap_in, fence, free],
    "freed on its way out": [admit, step, swap_out, free, fence],
    "freed on the host": [admit, step, swap_out, fence, free],
    "freed on its way back": [admit, step, swap_out, fence, swap_in, free, fence],
}


def manager_of(package: ModuleType, kinds: str) -> Any:
    made = {
        "full": package.FullAttentionSpec(2, 1, 8, "float32"),
        "states": package.MambaSpec(2, ((4,),), ("float32",), "align"),
    }
    groups = [package.CacheGroupSpec(made[kind]) for kind in kinds.split("+")]
    return package.CacheManager(40, groups, max_model_len=64, num_host_pages=20)


def view(manager: Any) -> object:
    """What can be seen of a manager."""
    manager.check()
    pool = manager.page_pool
    pages = manager.get_page_ids("a"), manager.get_host_page_ids("a")
    return pages, pool.get_num_free_pages(), manager.num_free_host_pages, len(pool.cached_page_hash_to_page)


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
@pytest.mark.parametrize("kinds", ["full", "full+states"])
@pytest.mark.parametrize("life", LIVES)
def test_an_id_that_raises_when_it_is_read_again_tears_nothing(package: ModuleType, kinds: str, life: str) -> None:
    """R1: whichever reading of whichever call it is, the call did what it does or nothing, and can be made again."""

    def live(broken: int, reads: int) -> list[object]:
        manager, request = manager_of(package, kinds), Treacherous("a", 9)
        swaps, seen = 0, []
        for number, act in enumerate(LIVES[life]):
            manager.next_swap = swaps
            before = view(manager)
            if number == broken:
                request.reads_left = reads
                try:
                    act(manager, request)
                except BrokenError:
                    request.reads_left = 1_000
                    assert view(manager) == before
                    act(manager, request)
                request.reads_left = 1_000
            else:
                act(manager, request)
            swaps += act is fence
            seen.append(view(manager))
        return seen

    untroubled = live(-1, 0)
    for broken in range(len(LIVES[life])):
        for reads in range(8):
            assert live(broken, reads) == untroubled, f"call {broken}, reading {reads + 1}"


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
@pytest.mark.parametrize("life", LIVES)
def test_an_id_counts_by_its_text(package: ModuleType, life: str) -> None:
    """SEC-4: one of a class of its own is neither hashed nor compared by that class."""
    seen: list[list[object]] = []
    for request_id in ("a", Hostile("a")):
        manager, request = manager_of(package, "full+states"), Treacherous(request_id, 9)
        manager.next_swap = 0
        seen.append([])
        for act in LIVES[life]:
            act(manager, request)
            manager.next_swap += act is fence
            seen[-1].append(view(manager))
    assert seen[0] == seen[1]
