"""SEC-3: pages and partition managers in a cache's documents, whose format stands in `declarations.documents`."""

from typing import Any

from numpy.typing import NDArray

from ..declarations.documents import axes_of, page_arrays_of, page_arrays_to_json
from ..layout.cache_dtypes import ScaledPages
from ..reading.arguments import refusal
from .partitions import AxisRules

__all__ = ["pages_from_json", "pages_to_json", "rules_from_json", "rules_to_json"]


def pages_to_json(pages: NDArray[Any] | ScaledPages) -> dict[str, Any]:
    """Pages as an object."""
    if isinstance(pages, ScaledPages):
        return page_arrays_to_json(pages.values, pages.scales)
    return page_arrays_to_json(pages, None)


def pages_from_json(name: str, value: object) -> NDArray[Any] | ScaledPages:
    """Pages from an object (SEC-3)."""
    values, scales = page_arrays_of(name, value)
    return values.copy() if scales is None else ScaledPages(values.copy(), scales.copy())


def rules_to_json(partition_manager: object) -> dict[str, Any]:
    """The rules of a partition manager.

    Raises:
        TypeError: it is no `AxisRules`: nothing is known of others.
    """
    if not isinstance(partition_manager, AxisRules):
        kind = type(partition_manager).__name__
        raise refusal(TypeError, "R1", f"partition_manager must be AxisRules to be saved, not {kind}")
    return {"pages": partition_manager.pages, "kv_heads": partition_manager.kv_heads}


def rules_from_json(name: str, value: object) -> AxisRules:
    """The rules of a partition manager from an object (SEC-3)."""
    return AxisRules(**axes_of(name, value))
