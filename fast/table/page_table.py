"""TAB: the page table of one cache group: the host's rows, their copy on the device, and where tokens go."""

from typing import NoReturn

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from kvproof.kernels import empty_table, write_cells
from kvproof.spec.declarations.uncopied import Uncopied

from ..reading.arguments import index, integer, refusal
from .slots import slot_mapping, update_slices
from .table_rows import HostRows, Ids

__all__ = ["PageTable", "cdiv"]


def cdiv(a: int, b: int) -> int:
    """The quotient ``a / b`` rounded up; ``b`` is at least 1 (R1). O(1).

    >>> cdiv(7, 3)
    3
    """
    return -(-integer("a", a, minimum=None) // integer("b", b, minimum=1))


class PageTable(HostRows, Uncopied):
    """The page table of one cache group: a host copy that calls change and a device copy that `commit` updates.

    Not thread-safe.

    Args:
        max_num_reqs: rows.
        max_num_pages_per_req: entries of a row.
        max_num_batched_tokens: the most tokens of one step, and the length of every slot mapping, so that the programs
            that read it are compiled once (TAB-7).
        sharding: the sharding of the device table; None: JAX's default device. A mesh axis that splits the
            table must be of the type ``Auto``; over others it may be replicated.

    Attributes:
        cpu_version: a number that every call that changes the host's rows or counts increases (TAB-8).
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_num_pages_per_req: int,
        max_num_batched_tokens: int,
        *,
        sharding: Sharding | None = None,
    ) -> None:
        super().__init__(max_num_reqs, max_num_pages_per_req)
        self.max_num_batched_tokens = integer("max_num_batched_tokens", max_num_batched_tokens, minimum=1, below=2**31)
        if sharding is not None and not isinstance(sharding, Sharding):
            raise refusal(TypeError, "R1", f"sharding={sharding!r} must be a jax.sharding.Sharding or None")
        self._sharding = sharding
        self._device: jax.Array = empty_table(*self._host.shape, sharding)

    # -- The device -------------------------------------------------------------------------------

    @property
    def page_table(self) -> jax.Array:
        """The device table, `i32[max_num_reqs, max_num_pages_per_req]`, as of the last commit (TAB-4). O(1).

        The array is valid until the next commit, which writes into it in place; using it after that raises JAX's
        ``RuntimeError``. Never donate it.
        """
        return self._device

    def get_device_tensor(self) -> jax.Array:
        """The device table; see ``page_table`` (TAB-4)."""
        return self._device

    def commit(self, num_reqs: int) -> None:
        """Makes the first rows of the device equal to the host's; the other rows keep what they have (TAB-4).

        Sends the entries that changed since they were last sent, and nothing if none did (TAB-5). Does not
        wait for the device. O(num_reqs + entries sent); where few rows changed, O(those + entries sent).

        Args:
            num_reqs: the number of rows, from 0 to ``max_num_reqs``.

        Raises:
            TypeError: ``num_reqs`` is no integer.
            IndexError: the table has fewer rows (TAB-2).
        """
        num = index("num_reqs", num_reqs, self.max_num_reqs + 1, "TAB-2")
        cells = self._lag.dirty_cells(num)
        if cells is not None:
            self._device = write_cells(self._device, cells, self._sharding)
        self._lag.mark_sent(num)

    def clear(self) -> None:
        """Empties every row, on the host and on the device at once (TAB-6). O(entries of the table).

        Device arrays returned before keep their values.
        """
        self._device = empty_table(*self._host.shape, self._sharding)
        super().clear()

    # -- Where tokens go (TAB-7) ------------------------------------------------------------------

    def slot_mapping(self, req_indices: Ids, positions: Ids, page_size: int) -> NDArray[np.int32]:
        """The cache slot of each token of a step (TAB-7). O(max_num_batched_tokens).

        Args:
            req_indices: the row of each token, `[num_tokens]`.
            positions: the position of each token in its row, `[num_tokens]`.
            page_size: tokens in a page.

        Returns:
            `i32[max_num_batched_tokens]`: page times ``page_size`` plus offset; -1 past ``num_tokens``.

        Raises:
            TypeError: a row, a position or ``page_size`` is no integer.
            IndexError: a row does not exist, or a token lies past the row's pages.
            ValueError: more tokens than ``max_num_batched_tokens``, or a slot that no int32 holds.
        """
        return slot_mapping(self._host, self._counts, self.max_num_batched_tokens, req_indices, positions, page_size)

    def update_slices(self, req_indices: Ids, starts: Ids, lengths: Ids, page_size: int) -> NDArray[np.int32]:
        """The runs of slots that the tokens of a step fill, none of which leaves its page (TAB-7). O(max_slices).

        Args:
            req_indices: the rows, each once, in the order in which their tokens stand in the step, `[n]`.
            starts: the position of each row's first token in the step, `[n]`.
            lengths: the number of tokens of each row in the step, `[n]`.
            page_size: tokens in a page.

        Returns:
            `i32[3, max_slices]`, a column (first slot, first token of the step, length) for each run; columns
            past the last run are -1. ``max_slices`` is ``min(2 * max_num_reqs + max_num_batched_tokens //
            page_size, max_num_batched_tokens)``, which no step with each row once exceeds.

        Raises:
            TypeError: a row, a start, a length or ``page_size`` is no integer.
            IndexError: a row does not exist, or a token lies past the row's pages.
            ValueError: a row named twice, more tokens than ``max_num_batched_tokens``, a negative start or
                length, or a slot that no int32 holds.
        """
        return update_slices(
            self._host, self._counts, self.max_num_batched_tokens, req_indices, starts, lengths, page_size
        )

    # -- Inside -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Verifies every redundancy of the state. O(entries of the table); waits for the device.

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        device = np.array(self._device)
        width = self.max_num_pages_per_req
        columns = np.arange(width)[None, :]
        lag = self._lag
        counts, synced, device_counts = self._counts[:, None], lag.synced[:, None], lag.device_counts[:, None]
        may_differ = (columns >= synced) & (columns < np.maximum(counts, device_counts))
        if device.shape != self._host.shape or device.dtype != np.int32:
            self._broken("TAB-1", f"the device table is {device.dtype}{list(device.shape)}", device)
        if not ((self._counts >= 0) & (self._counts <= width)).all():
            self._broken("TAB-2", "a count is negative or above the row's length", device)
        if (self._host < 0).any() or (self._host[columns >= counts]).any():
            self._broken("TAB-1", "the host has a negative entry, or one past a row's count that is not 0", device)
        if not ((synced >= 0) & (synced <= np.minimum(counts, device_counts))).all():
            self._broken("TAB-4", "more entries count as sent than a row has", device)
        if (device[columns >= device_counts]).any():
            self._broken("TAB-4", "the device has an entry past what was sent", device)
        if ((device != self._host) & ~may_differ).any():
            self._broken("TAB-4", "host and device differ in an entry that no commit would send", device)
        lacking = set(np.flatnonzero(may_differ[: lag.num_tracked].any(axis=1)).tolist())
        if not lacking <= lag.changed:
            self._broken("TAB-4", f"rows {sorted(lacking - lag.changed)} lack entries and count as unchanged", device)

    def _broken(self, clause: str, what: str, device: NDArray[np.int32]) -> NoReturn:
        lines = [f"{what} [{clause}]"]
        for row_idx in range(self.max_num_reqs):
            lines.append(
                f"row {row_idx}: count {self._counts[row_idx]}, synced {self._lag.synced[row_idx]}, "
                f"device count {self._lag.device_counts[row_idx]}, host {self._host[row_idx].tolist()}, "
                f"device {device[row_idx].tolist()}"
            )
        raise AssertionError("\n".join(lines))
