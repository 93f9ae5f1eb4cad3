"""Backends whose faults end a call in each of the ways that an emitted test has to show."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from kvproof import fast


def _with(method: str, make: Callable[[Any], Any]) -> SimpleNamespace:
    """The fast pool, one method of it made anew."""
    faulty = type("PagePool", (fast.PagePool,), {method: make(getattr(fast.PagePool, method))})
    return SimpleNamespace(PagePool=faulty)


def _lenient(get: Any) -> Any:
    def get_new_pages(pool: Any, num_pages: Any) -> Any:
        return get(pool, min(int(num_pages or 0), pool.get_num_free_pages()) if num_pages != 0 else 0)

    return get_new_pages


def _of_another_kind(get: Any) -> Any:
    def get_new_pages(pool: Any, num_pages: Any) -> Any:
        try:
            return get(pool, num_pages)
        except (TypeError, ValueError) as error:
            raise KeyError(str(error)) from error

    return get_new_pages


def _speechless(get: Any) -> Any:
    def get_new_pages(pool: Any, num_pages: Any) -> Any:
        try:
            return get(pool, num_pages)
        except (TypeError, ValueError) as error:
            raise type(error) from None

    return get_new_pages


def _raising(free: Any) -> Any:
    def free_pages(pool: Any, ordered_pages: Iterable[Any]) -> None:
        if not free(pool, ordered_pages) and pool.get_num_free_pages() > 2:
            raise RuntimeError("no reason")

    return free_pages


def _backwards(get: Any) -> Any:
    def get_new_pages(pool: Any, num_pages: Any) -> Any:
        return get(pool, num_pages)[::-1]

    return get_new_pages


not_refused = _with("get_new_pages", _lenient)
of_another_kind = _with("get_new_pages", _of_another_kind)
speechless = _with("get_new_pages", _speechless)
raising = _with("free_pages", _raising)
backwards = _with("get_new_pages", _backwards)
"""Pages in another order: a wrong result."""
