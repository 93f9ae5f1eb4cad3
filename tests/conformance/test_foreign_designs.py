"""Correct designs of strangers that have no more than the guide asks for: none is accused, and none ends the suite."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.cli import main
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.soak_lives import STEM, first_token
from kvproof.conformance.search.runner import MachineReport, run_machine


def held(machine: str, backend: Backend, examples: int = 12, **search: Any) -> MachineReport:
    return run_machine(MACHINES[machine], backend, 0, examples=examples, level="safe", shrink_seconds=0.2, **search)


def accused(found: MachineReport) -> list[str]:
    assert found.steps > 50
    return [str(deviation) for deviation in found.deviations]


# -- A pool of three methods ------------------------------------------------------------------------


class BarePool:
    """Has what `SafePool` lists and nothing else: no null page, no free queue, no counts, no caching."""

    def __init__(self, num_pages: int, enable_caching: bool) -> None:
        if type(num_pages) is bool or not 2 <= num_pages < 2**31 or type(enable_caching) is not bool:
            raise RuntimeError("such a pool there cannot be")
        self._free = set(range(1, num_pages))
        self._views = {number: SimpleNamespace(page_id=number) for number in self._free}

    def get_num_free_pages(self) -> int:
        return len(self._free)

    def get_new_pages(self, num_pages: int) -> list[Any]:
        if type(num_pages) is bool or not 0 <= num_pages <= len(self._free):
            raise RuntimeError(f"{num_pages} pages are not free")
        return [self._views[self._free.pop()] for _ in range(num_pages)]

    def free_pages(self, ordered_pages: Any) -> None:
        given = list(ordered_pages)
        numbers = [page.page_id for page in given]
        if any(self._views.get(page.page_id) is not page for page in given):
            raise RuntimeError("a stranger's")
        if len({*numbers}) < len(numbers) or self._free & {*numbers}:
            raise RuntimeError("freed twice")
        self._free |= {*numbers}


def test_a_pool_needs_three_methods() -> None:
    found = held("safe-pool", Backend("bare", SimpleNamespace(PagePool=BarePool)), 30)
    assert accused(found) == []


# -- A manager of four methods ----------------------------------------------------------------------


class Fails(spec.CacheManager):
    """Cannot be made."""

    def __init__(self, num_pages: int, kv_cache_groups: Any, max_model_len: int) -> None:
        raise RuntimeError("no device")


class Plain:
    """Takes three arguments, and gives pages as tuples of views; hits are handed back as they were given."""

    def __init__(self, num_pages: int, kv_cache_groups: Any, max_model_len: int) -> None:
        self._whole = spec.CacheManager(num_pages, kv_cache_groups, max_model_len)

    def get_computed_pages(self, request: Any) -> Any:
        pages, length = self._whole.get_computed_pages(request)
        return tuple(tuple(group) for group in pages.pages), length

    def allocate_slots(
        self, request: Any, num_new_tokens: int, found: int = 0, found_pages: Any = None, lookahead: int = 0
    ) -> Any:
        given = None if found_pages is None else spec.CachePages(found_pages)
        new = self._whole.allocate_slots(request, num_new_tokens, found, given, lookahead)
        return None if new is None else tuple(tuple(group) for group in new.pages)

    def free(self, request: Any) -> None:
        self._whole.free(request)

    def get_page_ids(self, request_id: str) -> Any:
        return self._whole.get_page_ids(request_id)


def managers(made: type) -> Backend:
    return Backend("plain", SimpleNamespace(CacheManager=made, kvproof_lacks=("groups", "keys", "tables", "queue")))


@pytest.mark.parametrize(("machine", "examples"), [("safe-manager", 40), ("safe-soak", 1), ("secrets", 6)])
def test_a_manager_needs_three_arguments_and_may_give_lists_of_pages(machine: str, examples: int) -> None:
    found = held(machine, managers(Plain), examples)
    assert not found.missing or machine == "secrets"
    assert found.missing or accused(found) == []


class Windows(Plain):
    """Knows full attention and windows, and neither states nor Eagle."""

    def __init__(self, num_pages: int, kv_cache_groups: Any, max_model_len: int) -> None:
        for group in kv_cache_groups:
            if not isinstance(group.kv_cache_spec, spec.FullAttentionSpec | spec.SlidingWindowSpec):
                raise RuntimeError(f"{group} is of no kind that it knows")
            if group.is_eagle_group:
                raise RuntimeError("no Eagle")
        super().__init__(num_pages, kv_cache_groups, max_model_len)


_DECLARED = ("CacheGroupSpec", "FullAttentionSpec", "SlidingWindowSpec")
_OTHERS = ("ChunkedLocalAttentionSpec", "MLAAttentionSpec", "MambaSpec")


def takes_windows(groups: Any, use_eagle: bool) -> bool:
    return not use_eagle and all(group.kind in ("full", "window") for group in groups)


def test_a_manager_is_given_the_kinds_of_groups_that_it_has() -> None:
    names = {name: getattr(spec, name) for name in _DECLARED}
    backend = Backend("windows", SimpleNamespace(CacheManager=Windows, **names))
    assert accused(held("safe-soak", backend, 2)) == []


def test_a_manager_says_which_groups_it_takes() -> None:
    names = {name: getattr(spec, name) for name in (*_DECLARED, *_OTHERS)}
    backend = Backend("windows", SimpleNamespace(CacheManager=Windows, kvproof_takes_groups=takes_windows, **names))
    assert accused(held("safe-groups", backend, 40)) == []


def test_a_manager_that_cannot_be_made_ends_no_soak() -> None:
    found = held("safe-soak", managers(Fails), 2)
    assert [deviation.clause for deviation in found.deviations] == ["MAN-2"]


def test_tokens_of_the_last_requests_of_a_long_life_are_below_those_that_requests_share() -> None:
    assert max(map(first_token, range(10_000))) + 400_000 < STEM < 2**31
    assert first_token(1400) == 1_400_000_000


# -- Types that the contract leaves open ------------------------------------------------------------


class OwnValueError(ValueError):
    """What an engine raises in the place of a ValueError."""


class Tupled(fast.PagePool):
    """Gives pages as tuples."""

    def get_new_pages(self, num_pages: int) -> Any:
        return tuple(super().get_new_pages(num_pages))

    def get_cached_page(self, page_hash: Any, kv_cache_group_ids: Any) -> Any:
        found = super().get_cached_page(page_hash, kv_cache_group_ids)
        return None if found is None else tuple(found)


class Raising(fast.CacheManager):
    """Its refusals are of a class of its own, derived from the one that R1 asks for."""

    def slot_of(self, request_id: str) -> int:
        try:
            return super().slot_of(request_id)
        except ValueError as error:
            raise OwnValueError(*error.args) from None

    def snapshot(self) -> Any:
        try:
            return super().snapshot()
        except ValueError as error:
            raise OwnValueError(*error.args) from None


@pytest.mark.parametrize(
    ("machine", "name", "made"), [("pool", "PagePool", Tupled), ("batch", "CacheManager", Raising)]
)
def test_tuples_of_pages_and_own_errors_are_right_at_level_exact(machine: str, name: str, made: type) -> None:
    backend = Backend("typed", SimpleNamespace(**{**{own: getattr(fast, own) for own in fast.__all__}, name: made}))
    found = run_machine(MACHINES[machine], backend, 0, examples=12, shrink_seconds=0.2)
    assert accused(found) == []


def on_the_host(pages: Any, keys: Any, values: Any, slots: Any, **options: Any) -> Any:
    """Takes arrays of either kind and gives numpy's, which JAX cannot trace."""
    pages, keys, values, slots = (
        np.asarray(given) if hasattr(given, "dtype") else given for given in (pages, keys, values, slots)
    )
    found = fast.kv_cache_update(pages, keys, values, slots, **options)
    return np.asarray(found) if hasattr(found, "dtype") else found


def test_an_update_that_computes_on_the_host_is_not_asked_for_under_jit() -> None:
    backend = Backend("host", SimpleNamespace(kv_cache_update=on_the_host, copy_pages=fast.copy_pages))
    found = run_machine(MACHINES["cache"], backend, 0, examples=24, shrink_seconds=0.2)
    assert accused(found) == []


class Hashing:
    """Has one of the functions that the machine of hashes needs."""

    hash_page_tokens = init_none_hash = sha256 = staticmethod(spec.hash_page_tokens)


def test_who_has_the_beginning_of_something_is_told_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", f"{__name__}:Hashing"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("machines need: it has no hash_request_tokens")
