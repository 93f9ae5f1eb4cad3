"""HASH-1, POOL-7: what the key of a full page looks like, and how a key and a digest are read."""

from typing import Any, NamedTuple

from .extra_keys import HashFunction
from .reading import refusal

__all__ = ["PageHash", "PageHashWithGroupId", "digest_of", "read_page_hash"]


class PageHash(NamedTuple):
    """The key of a full page.

    Attributes:
        hash_value: the digest over the page's tokens and extra keys and all those before it in the request.
        token_ids: the page's own tokens.
        extra_keys: the extra keys that touch the page; None if there are none.
    """

    hash_value: bytes
    token_ids: tuple[int, ...]
    extra_keys: Any | None = None


class PageHashWithGroupId(NamedTuple):
    """The key of a page in the cached map: with the group's number, as groups never share pages (POOL-7)."""

    page_hash: PageHash
    group_id: int

    def get_hash_value(self) -> bytes:
        """The page's digest."""
        return self.page_hash.hash_value


def read_page_hash(name: str, value: object) -> PageHash:
    """Reads a key; one of another package's class is accepted (R1).

    Raises:
        TypeError: the value is not a key.
    """
    if not (isinstance(value, tuple) and len(value) == 3):
        raise refusal(TypeError, "R1", f"{name} must be a PageHash, not {type(value).__name__}")
    for field, kind, own in zip(("hash_value", "token_ids"), (bytes, tuple), value, strict=False):
        if not isinstance(own, kind):
            raise refusal(TypeError, "R1", f"{name}: {field} must be {kind.__name__}, is {type(own).__name__}")
    return PageHash(*value)


def digest_of(hash_function: HashFunction, message: bytes) -> bytes:
    """The digest of a message.

    Raises:
        TypeError: the function can't be called (R1) or returned something else than bytes (HASH-1).
    """
    if not callable(hash_function):
        raise refusal(TypeError, "R1", f"hash_function={hash_function!r} must be callable")
    digest = hash_function(message)
    if not isinstance(digest, bytes):
        raise refusal(
            TypeError,
            "HASH-1",
            f"hash_function={hash_function!r} returned {type(digest).__name__}, it must return bytes",
        )
    return digest
