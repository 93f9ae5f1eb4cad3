"""HASH-2: the extra keys, which decide a page's content beside its tokens; and the type of hash functions."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "CacheSalt",
    "ExtraKey",
    "HashFunction",
    "LoraAdapter",
    "MultimodalItem",
    "PromptEmbeddings",
    "WeightsVersion",
    "sha256",
]


class HashFunction(Protocol):
    """A hash over bytes: ``bytes in, bytes out``, without state (HASH-1)."""

    def __call__(self, message: bytes, /) -> bytes:
        """The digest of a message."""
        ...


def sha256(message: bytes) -> bytes:
    """SHA-256, the default `HashFunction`."""
    return hashlib.sha256(message).digest()


@dataclass(frozen=True, init=False, repr=False)
class CacheSalt:
    """A cache salt, which separates tenants: requests with different salts share no pages.

    Only a fingerprint of the salt's text is kept, so no key, page, event or snapshot can print the text (SEC-2). A salt
    must be random, 16 bytes or more (``secrets.token_hex(16)``), not a tenant's name: a reader of a snapshot, or of
    events as text, could find a guessable salt by hashing guesses. A keyed hash would not help: a restored manager must
    recognise the salts of later requests, so the snapshot would have to hold the key beside the fingerprints.

    Args:
        value: the salt's text, random.

    Attributes:
        fingerprint: the SHA-256 of the text.
    """

    fingerprint: bytes

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"a CacheSalt is made of a str, not {type(value).__name__} [HASH-2]")
        try:
            text = value.encode()
        except UnicodeEncodeError:  # its message and its fields show the text
            raise ValueError("a CacheSalt is made of a str that is no Unicode text [HASH-2]") from None
        object.__setattr__(self, "fingerprint", hashlib.sha256(text).digest())

    @classmethod
    def of_fingerprint(cls, fingerprint: bytes) -> "CacheSalt":
        """The salt of a fingerprint, such as one read from a snapshot."""
        if not isinstance(fingerprint, bytes):
            raise TypeError(f"fingerprint must be bytes, not {type(fingerprint).__name__} [HASH-2]")
        salt = cls.__new__(cls)
        object.__setattr__(salt, "fingerprint", fingerprint)
        return salt

    def __repr__(self) -> str:
        return "CacheSalt(...)"


@dataclass(frozen=True)
class LoraAdapter:
    """The LoRA adapter that the request runs with."""

    name: str


@dataclass(frozen=True)
class WeightsVersion:
    """The version of the model's weights."""

    version: str


@dataclass(frozen=True)
class MultimodalItem:
    """Multimodal content in place of the tokens ``[offset, offset + length)`` of the request.

    Attributes:
        content: a digest of the content (an image, a clip), wide enough never to collide.
        offset: the position of its first placeholder token.
        length: the number of its placeholder tokens, at least 1.
    """

    content: bytes
    offset: int
    length: int


@dataclass(frozen=True)
class PromptEmbeddings:
    """Embeddings in place of the tokens ``[offset, offset + length)``; ``content`` is a digest of them."""

    content: bytes
    offset: int
    length: int


ExtraKey = CacheSalt | LoraAdapter | WeightsVersion | MultimodalItem | PromptEmbeddings
"""One extra key. A request has at most one salt, one adapter and one version, and any number of items."""
