"""Managers that tell what nobody may be told, or trip over an id; each as the fast backend is otherwise."""

import json
from types import SimpleNamespace
from typing import Any

from kvproof import fast


def _backend(**methods: Any) -> SimpleNamespace:
    manager = type("CacheManager", (fast.CacheManager,), methods)
    return SimpleNamespace(**{name: getattr(fast, name) for name in fast.__all__} | {"CacheManager": manager})


def _tokens_in_errors(manager: Any, request: Any, *more: Any, **named: Any) -> Any:
    try:
        return fast.CacheManager.allocate_slots(manager, request, *more, **named)
    except (TypeError, ValueError, IndexError) as error:
        tokens = list(getattr(request, "all_token_ids", ()))
        raise type(error)(f"tokens {tokens}: {error}") from error


def _raw_ids_in_errors(manager: Any, request: Any, *more: Any, **named: Any) -> Any:
    try:
        return fast.CacheManager.allocate_slots(manager, request, *more, **named)
    except (TypeError, ValueError, IndexError) as error:
        raise type(error)(f"request {getattr(request, 'request_id', '?')}: {error}") from error


def _fingerprints_in_errors(manager: Any, request: Any, *more: Any, **named: Any) -> Any:
    try:
        return fast.CacheManager.allocate_slots(manager, request, *more, **named)
    except (TypeError, ValueError, IndexError) as error:
        salts = [getattr(key, "fingerprint", b"").hex() for key in getattr(request, "extra_keys", ())]
        raise type(error)(f"salts {salts}: {error}") from error


def _ids_in_ascii(manager: Any, request: Any) -> Any:
    getattr(request, "request_id", "").encode()
    return fast.CacheManager.get_computed_pages(manager, request)


def _documents_of_any_format(text: str) -> Any:
    document = json.loads(text)
    document.pop("__class__", None)
    return fast.RaggedPagesCacheMetaData.from_json(json.dumps({**document, "format": 1}))


tokens_in_errors = _backend(allocate_slots=_tokens_in_errors)
raw_ids_in_errors = _backend(allocate_slots=_raw_ids_in_errors)
fingerprints_in_errors = _backend(allocate_slots=_fingerprints_in_errors)
ids_in_ascii = _backend(get_computed_pages=_ids_in_ascii)
any_document = _backend()
any_document.RaggedPagesCacheMetaData = SimpleNamespace(from_json=_documents_of_any_format)
