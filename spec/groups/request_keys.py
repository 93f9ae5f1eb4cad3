"""HASH-3, MAN-6: the keys of each request's full pages, kept so that each is computed once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..declarations import ExtraKey
from ..pool.hashing import PageHash
from ..pool.page_pool import PagePool
from ..reading.arguments import refusal

__all__ = ["Chains", "RequestKeys"]


@dataclass
class Chains:
    """The keys of a request's full pages, with the tokens and extra keys that they were computed from (MAN-6).

    Groups of one page size share a chain (HASH-3): ``chains[page_size]``.

    Attributes:
        tokens: tokens from which the keys were computed.
        extra_keys: extra keys from which the keys were computed.
        of_size: key and content id of each full page, by page size; empty with caching off.
    """

    tokens: list[int]
    extra_keys: tuple[ExtraKey, ...]
    of_size: dict[int, list[tuple[PageHash, int]]] = field(default_factory=dict)

    def __getitem__(self, page_size: int) -> list[tuple[PageHash, int]]:
        return self.of_size[page_size]


class RequestKeys:
    """The chains of keys of each request id, one for each page size of the groups.

    Args:
        pool: the pool whose hash function and root make the keys.
        page_sizes: the groups' page sizes.
    """

    def __init__(self, pool: PagePool, page_sizes: Iterable[int]) -> None:
        self._pool = pool
        self._page_sizes = set(page_sizes)
        self._keys: dict[str, Chains] = {}

    def chains(self, request_id: str, tokens: list[int], extra_keys: tuple[ExtraKey, ...], is_live: bool) -> Chains:
        """The chains over all full pages of a request's known tokens (HASH-3).

        Args:
            request_id: the request's id.
            tokens: its tokens.
            extra_keys: its extra keys.
            is_live: whether it is live.

        Raises:
            ValueError: the request is live and its tokens or extra keys are no longer those of its keys (MAN-6). A
                backend may leave that to its caller: the check costs O(tokens) a call, and finds changes only of
                tokens that an earlier call had. Without it, K/V computed from the old tokens are published under
                those that the request has when a page is full.
        """
        keys = self._keys.get(request_id)
        if keys is None or keys.extra_keys != extra_keys or keys.tokens != tokens[: len(keys.tokens)]:
            if keys is not None and is_live:
                raise refusal(ValueError, "MAN-6", f"request {request_id!r} is live, its tokens or extra keys changed")
            keys = self._keys[request_id] = Chains([], extra_keys, {size: [] for size in self._page_sizes})
        keys.tokens = tokens
        for size, chain in keys.of_size.items():
            self._pool.keys.extend_chain(chain, tokens, extra_keys, size, len(tokens) // size)
        return keys

    def drop(self, request_id: str) -> None:
        """Forgets the keys of a request id."""
        self._keys.pop(request_id, None)
