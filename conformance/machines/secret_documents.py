"""Documents that are none: metadata of a cache written by the specification, with one damage each (SEC-3)."""

import functools
import json
from collections.abc import Callable
from typing import Any

from .base import SPEC

__all__ = ["damaged_documents"]


def damaged_documents() -> list[tuple[str, Callable[[Any], Any]]]:
    """Readings of damaged metadata: each as a report shows it, and what makes it on a side."""
    return [
        (
            f"RaggedPagesCacheMetaData.from_json(<metadata, {what}>)",
            functools.partial(_read, text),
        )
        for what, text in _damaged_texts().items()
    ]


def _read(text: str, side: Any) -> Any:
    return side.names.get("RaggedPagesCacheMetaData").from_json(text)


@functools.cache
def _damaged_texts() -> dict[str, str]:
    metadata = SPEC.get("RaggedPagesCacheMetaData")(
        num_hidden_layers=1,
        max_model_length=8,
        num_kv_heads=2,
        k_headdim=64,
        v_headdim=64,
        page_size=4,
        num_pages=3,
    )
    good: dict[str, Any] = json.loads(metadata.to_json())
    changed: dict[str, dict[str, Any]] = {
        "of a later format": good | {"format": 2},
        "of format True": good | {"format": True},
        "of format '1'": good | {"format": "1"},
        "of another kind": good | {"kind": "RaggedPagesMetadata"},
        "of a kind that names code": good | {"kind": "os.system"},
        "with a field more": good | {"__class__": "object"},
        "with a field less": {name: value for name, value in good.items() if name != "num_pages"},
        "without a format": {name: value for name, value in good.items() if name != "format"},
    }
    texts = {what: json.dumps(document) for what, document in changed.items()}
    return texts | {
        "cut off": json.dumps(good)[:-1],
        "nothing": "",
        "nested without end": "[" * 100_000,
    }
