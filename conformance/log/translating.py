"""The arguments of a call on a live backend as the specification's own objects know them."""

from collections.abc import Mapping
from typing import Any

import kvproof.spec
from kvproof.spec.pool.hashing import hash_request_tokens

from .calls import LoggedCall
from .recorded_calls import KeyOrigins

__all__ = ["SpecificationArguments"]


class SpecificationArguments:
    """Makes the specification's arguments of the backend's.

    Requests are the same objects: nobody writes to them. Pages stand for those of the same id, tables for those beside
    them, keys for the keys of the same page of the same request.

    Args:
        views: the specification's pages by id.
        whole: the specification's manager or pool.
    """

    def __init__(self, views: Mapping[int, Any], whole: Any) -> None:
        self._views = views
        self._pool = getattr(whole, "page_pool", whole)
        self._origins = KeyOrigins()
        self._hits: dict[int, Any] = {}

    def of(
        self, call: LoggedCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call."""
        names = list(call.arguments)
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        kinds = [call.arguments[name] for name in names[: len(args)]]
        made = [self._one(kind, value, named) for kind, value in zip(kinds, args, strict=False)]
        return (*made, *args[len(made) :]), {
            name: self._one(call.arguments.get(name, "plain"), value, named) for name, value in kwargs.items()
        }

    def learn(
        self, call: LoggedCall, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], returned: Any
    ) -> None:
        """Notes what a call of the specification returned: hits, which are handed back, and keys."""
        named = {**dict(zip(call.arguments, args, strict=False)), **kwargs}
        if returned is not None and call.result == "hit":
            self._hits[id(named["request"])] = returned[0]
        if method == "cache_full_pages" and returned is None and "page_size" in named:
            first, end = named.get("num_cached_pages"), named.get("num_full_pages")
            if isinstance(first, int) and isinstance(end, int):
                self._origins.learn(named["request"], named["pages"], first, end, named["page_size"])

    def _one(self, kind: str, value: Any, named: Mapping[str, Any]) -> Any:
        match kind:
            case "pages":
                return self._pages(value)
            case "groups" if isinstance(value, list | tuple):
                return [self._pages(group) for group in value]
            case "hits" if hasattr(value, "get_page_ids"):
                ids = [list(group) for group in value.get_page_ids()]
                last = self._hits.get(id(named.get("request")))
                if last is not None and [list(group) for group in last.get_page_ids()] == ids:
                    return last
                return kvproof.spec.CachePages([[self._views[page] for page in group] for group in ids])
            case "tables" if value is not None:
                return getattr(value, "__dict__", {}).get("_kvproof_spec", value)
            case "keys" if isinstance(value, list | tuple):
                return self._keys(named["request"], named.get("page_size"))[: len(value)]
            case "key":
                origin = self._origins.of(value)
                if origin is None:
                    return kvproof.spec.PageHash(b"no key of any page", (), None)
                return self._keys(origin[0], origin[2])[origin[1]]
            case _:
                return value

    def _pages(self, pages: Any) -> Any:
        try:
            return [self._views.get(getattr(page, "page_id", -1), page) for page in pages]
        except TypeError:
            return pages

    def _keys(self, request: Any, page_size: Any) -> list[Any]:
        pool = self._pool
        return list(hash_request_tokens(pool.hash_function, page_size, request, none_hash=pool.none_hash))
