"""Pages of layers in host memory: what a manager's swap plans say is copied there and back (SWAP-1)."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import SwapCopy, SwapPlan

from ..backends.loading import Backend
from .groups import LayerGroup

__all__ = ["HostMemory"]

_LEAST, _STEP = 16, 4
"""So many ids are sent at least, else so many times as many: programs are compiled for few sizes."""


class HostMemory:
    """What host pages hold. It grows with the most pages that are ever in use.

    Args:
        backend: whose functions read and write the caches.
        groups: the model's cache groups.
    """

    def __init__(self, backend: Backend, groups: Sequence[LayerGroup]) -> None:
        self._backend, self._groups = backend, groups
        self._pages: dict[int, list[Any]] = {}
        """Of each host page what it holds, for each layer of its group; arrays of numpy's in a pytree."""

    def move(self, plan: SwapPlan, caches: list[Any]) -> None:
        """Runs the copies of a plan; on the way out they have ended when this returns. O(pages copied).

        Args:
            plan: the plan.
            caches: of each layer of the model; on the way in those that are written are replaced.
        """
        for number, group in enumerate(self._groups):
            copies = [copy for copy in plan.copies if copy.group_id == number]
            if not copies:
                continue
            own = [caches[layer] for layer in group.layers]
            ids = _padded([copy.device_page for copy in copies], -1)
            if plan.direction == "out":
                self._keep(copies, self._exported(group, own, ids, _padded([copy.num_slots for copy in copies], 0)))
                continue
            written = self._imported(group, own, ids, self._kept(copies, len(ids)))
            for layer, cache in zip(group.layers, written, strict=True):
                caches[layer] = cache

    # -- The host -----------------------------------------------------------------------------------------------

    def _keep(self, copies: Sequence[SwapCopy], block: list[Any]) -> None:
        """Puts pages that left the device where the plan says; waits for them."""
        arrived = jax.tree.map(np.asarray, block)
        for place, copy in enumerate(copies):
            self._pages[copy.host_page] = jax.tree.map(lambda array, at=place: array[at].copy(), arrived)

    def _kept(self, copies: Sequence[SwapCopy], count: int) -> list[Any]:
        """The pages that a plan names as a block of ``count`` for each layer, the last ones zeros."""

        def stacked(*pages: NDArray[Any]) -> NDArray[Any]:
            block = np.zeros((count, *pages[0].shape), pages[0].dtype)
            block[: len(pages)] = pages
            return block

        block: list[Any] = jax.tree.map(stacked, *(self._pages[copy.host_page] for copy in copies))
        return block

    # -- The device ---------------------------------------------------------------------------------------------

    def _exported(
        self, group: LayerGroup, caches: list[Any], ids: NDArray[np.int32], slots: NDArray[np.int32]
    ) -> list[Any]:
        """Pages of a group's layers, dead slots zeroed (SWAP-2)."""
        match group.kind.kind:
            case "state":
                return [room.read(ids) for room in caches]
            case "mla":
                return list(self._backend.get("export_pages")(caches, ids, slots))
        return list(self._backend.get("RaggedPagesCache")(caches).export_pages(ids, slots))

    def _imported(
        self, group: LayerGroup, caches: list[Any], ids: NDArray[np.int32], block: list[Any]
    ) -> Sequence[Any]:
        """The caches of a group's layers with pages written."""
        match group.kind.kind:
            case "state":
                return [room.write(ids, states) for room, states in zip(caches, block, strict=True)]
            case "mla":
                return list(self._backend.get("write_states")(caches, ids, block))
        views: list[Any] = self._backend.get("RaggedPagesCache")(caches).import_pages(ids, block).views
        return views


def _padded(numbers: list[int], padding: int) -> NDArray[np.int32]:
    size = _LEAST
    while size < len(numbers):
        size *= _STEP
    return np.array(numbers + [padding] * (size - len(numbers)), np.int32)
