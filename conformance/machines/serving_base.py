"""What the serving machine knows: what every slot holds, told from the requests alone, and dense attention over it."""

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvproof.spec.declarations import Request

from ..calls.values import signed
from .arrays import Array
from .base import Machine, Side
from .layouts import Layout
from .ragged import SETUPS, Setup
from .worlds import Group

__all__ = ["KITS", "Kit", "Served", "ServingMachine"]

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Kit:
    """What serves: a cache, how attention reads it, and the cache group that the manager plans for.

    Attributes:
        setup: the cache and the attention.
        group: the cache group.
    """

    setup: Setup
    group: Group

    @property
    def max_model_len(self) -> int:
        """The most tokens of a request."""
        return self.setup.most_keys

    def __str__(self) -> str:
        return f"{self.setup.layout}, {self.group}"


KITS = {
    "full": Kit(SETUPS["plain"], Group("full", 4)),
    "window": Kit(SETUPS["window"], Group("window", 3, 3)),
}
"""What serves, by name: with programs that the attention machine has as well; the first is the simplest."""


@dataclass
class Served:
    """A request that runs, in the row of its place.

    Attributes:
        request: the request.
        computed: its tokens that the cache holds.
        planned: its tokens that this step adds.
    """

    request: Request
    computed: int = 0
    planned: int = 0

    @property
    def tokens(self) -> Prefix:
        """All of its tokens."""
        return tuple(map(int, self.request.all_token_ids))


@functools.lru_cache(maxsize=4096)
def embedded(prefix: Prefix, kind: str, shape: tuple[int, ...], dtype: str) -> Array:
    """What a model makes of a token after all that stand before it: numbers of both signs, always the same."""
    return signed(zlib.crc32(repr((prefix, kind)).encode()), shape, dtype)


class ServingMachine(Machine):
    """A manager, a page table and a cache, the backend's beside the specification's; who runs stands in rows.

    Attributes:
        kit: what serves.
        running: who runs, by row.
        holds: for each slot that anybody may read the tokens up to the one whose key and value it holds.
    """

    kit: Kit
    running: list[Served]
    holds: dict[int, Prefix]

    @property
    def layout(self) -> Layout:
        """The cache."""
        return self.kit.setup.layout

    def keys_values(self, prefixes: list[Prefix]) -> tuple[Array, Array]:
        """The keys `[n, H, D]` and values `[n, H, Dv]` of tokens, in the cache's type."""
        layout = self.layout
        made = [
            np.array([embedded(prefix, kind, (layout.heads, size), layout.dtype) for prefix in prefixes])
            for kind, size in zip(("key", "value"), layout.dims, strict=True)
        ]
        empty = [np.zeros((0, layout.heads, size), layout.dtype) for size in layout.dims]
        return (made[0], made[1]) if prefixes else (empty[0], empty[1])

    def queries(self, prefixes: list[Prefix]) -> Array:
        """The queries `[num_tokens, Hq, D]` of a step; NaN past its tokens (ATT-4)."""
        setup = self.kit.setup
        shape = setup.query_heads, setup.layout.dims[0]
        rows = np.full((setup.num_tokens, *shape), np.nan, setup.queries)
        for row, prefix in enumerate(prefixes):
            rows[row] = embedded(prefix, "query", shape, setup.queries)
        return rows

    def dense(self, prefix: Prefix) -> tuple[Array, float]:
        """Dense attention of a request's token over all before it, in float64, and the largest value that it reads.

        Args:
            prefix: the request's tokens up to that one.
        """
        setup, end = self.kit.setup, len(prefix)
        first = max(end - setup.options.get("window", end), 0)
        keys, values = (
            part.astype(np.float64) for part in self.keys_values([prefix[: n + 1] for n in range(first, end)])
        )
        shape = setup.query_heads, setup.layout.dims[0]
        query = embedded(prefix, "query", shape, setup.queries).astype(np.float64)
        grouped = query.reshape(setup.layout.heads, setup.group, -1)
        scale = setup.options.get("scale", setup.layout.dims[0] ** -0.5)
        scores = np.einsum("hgd,nhd->hgn", grouped, keys) * scale
        if "soft_cap" in setup.options:
            scores = setup.options["soft_cap"] * np.tanh(scores / setup.options["soft_cap"])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hgn,nhd->hgd", weights, values)
        return out.reshape(setup.query_heads, -1), float(np.abs(values).max())

    # -- What the cache holds -----------------------------------------------------------------------------------

    def page_ids(self, side: Side, name: str) -> list[int]:
        """The pages of a request, null pages for those it gave back."""
        return [int(page) for page in side.manager.get_page_ids(name)[0]]

    def slot(self, pages: list[int], position: int) -> int:
        """Where a request's token stands."""
        page, offset = divmod(position, self.layout.page_size)
        return pages[page] * self.layout.page_size + offset

    def forget(self, pages: set[int]) -> None:
        """What pages held is not read any more."""
        for slot in [slot for slot in self.holds if slot // self.layout.page_size in pages]:
            del self.holds[slot]

    def scrub(self) -> None:
        """Poisons whatever nobody may read: pages of nobody that no look-up finds, and slots not written yet."""
        held = {page for served in self.running for page in self.page_ids(self.spec, served.request.request_id)}
        kept = held | {page.page_id for page in self.spec.pages.values() if page.page_hash is not None}
        self.forget({slot // self.layout.page_size for slot in self.holds} - kept)
        pages = np.array(np.asarray(self.backend.cache))
        poison = np.asarray(self.layout.empty()).reshape(self.layout.num_slots, -1)
        dead = np.setdiff1d(np.arange(self.layout.num_slots), np.array(sorted(self.holds), np.int64))
        pages.reshape(self.layout.num_slots, -1)[dead] = poison[dead]
        self.backend.put({"cache": pages})

    def lost(self) -> list[int]:
        """The slots in which the backend's cache holds something else than it must."""
        slots = sorted(self.holds)
        if not slots:
            return []
        wanted = self.keys_values([self.holds[slot] for slot in slots])
        found = self.layout.read(self.backend.cache)
        wrong = np.zeros(len(slots), bool)
        for want, seen in zip(wanted, found, strict=True):
            wrong |= np.any(want.astype(np.float64) != seen[slots], axis=(1, 2))
        return [slot for slot, off in zip(slots, wrong, strict=True) if off]

    def strange(self, served: Served) -> list[int]:
        """The places whose page, by what is known, holds another request's content (R2)."""
        name, tokens = served.request.request_id, served.tokens
        pages = self.page_ids(self.backend, name)
        first = max(served.computed - self.kit.setup.options.get("window", served.computed + 1) + 1, 0)
        positions = range(first, served.computed)
        wrong = [p for p in positions if self.holds.get(self.slot(pages, p)) != tokens[: p + 1]]
        return sorted({position // self.layout.page_size for position in wrong})


def rows_of(table: Any) -> Array:
    """What a table shows, in memory of its own."""
    return np.array(np.asarray(table))
