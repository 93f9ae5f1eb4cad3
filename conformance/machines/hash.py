"""The hash machine: the keys of pages, byte by byte."""

import os
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter, MultimodalItem, Request

from ..backends import Backend
from ..levels import LEVELS
from ..properties import start, step
from ..spelling import NUMBERS, request_as, request_source
from .base import Machine, Side
from .draws import EXTRA_KEYS, NO_INTS, Drawing, one_of, rarely

__all__ = ["Hash", "weak"]

_SEEDED = (
    ("init_none_hash", "seed"),
    ("init_none_hash", "hash_function"),
    ("hash_page_tokens", "none_hash"),
    ("hash_request_tokens", "none_hash"),
)
_TOKENS = (0, 1, -1, -2, 2**31 - 1, -(2**31))
_PARENTS = (None, b"", b"\x00", b"a", b"\x00" * 32)
_MORE_KEYS: tuple[Any, ...] = ((), (None,), ("a",), (b"a",), (0,), (-1,), (("a",), ()), ("", b""))
_BAD_EXTRA_KEYS: tuple[Any, ...] = (
    (CacheSalt("a"), CacheSalt("b")),
    (LoraAdapter("a"), LoraAdapter("a")),
    (MultimodalItem(b"a", 0, 0),),
    (MultimodalItem(b"a", -1, 1),),
    (MultimodalItem(b"a", True, 1),),
    (MultimodalItem(b"a", 0, 1), MultimodalItem(b"a", 0, 1)),
    ("a salt by itself",),
)


def weak(message: bytes) -> bytes:
    """A hash function that collides all the time: whatever stands on it must not trust it (R2)."""
    return bytes([sum(message) % 3])


def _key(key: Any, _: Side) -> tuple[Any, ...]:
    return (key.hash_value, tuple(key.token_ids), key.extra_keys)


def _keys(keys: Any, side: Side) -> list[tuple[Any, ...]]:
    return [_key(key, side) for key in keys]


class Hash(Machine):
    """Its calls have no state; with the same seed both sides give the same bytes (HASH-1)."""

    name = "hash"
    levels = frozenset(LEVELS)
    capability = "keys"
    examples = 40
    needs = ("hash_page_tokens", "hash_request_tokens", "init_none_hash", "sha256")
    always = frozenset({"R1"})

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """Beside the functions, the parameters by which they are told the seed."""
        lacking = super().missing(backend)
        return lacking or [f"{function}({name}=)" for function, name in _SEEDED if not backend.accepts(function, name)]

    @start("HASH-1", seed=st.sampled_from([b"", b"kvproof", b"\x00" * 32]), collides=st.booleans())
    def seed(self, seed: bytes, collides: bool) -> None:
        """The root of a seed."""
        self.function = "weak" if collides else "sha256"

        def act(side: Side) -> dict[str, Any]:
            function = weak if collides else side.names.get("sha256")
            return {"function": function, "root": side.names.get("init_none_hash")(seed, function)}

        self.build(f"root = init_none_hash({seed!r}, {self.function})", "HASH-1", act)
        self.check("HASH-1", "root", self.spec.root, lambda: self.backend.root)

    @step("HASH-1", "HASH-2")
    def hash_page_tokens(self, data: Drawing) -> None:
        """The key of a page, after any parent, with extra keys of any kind and with values that have an encoding."""
        parent = one_of(data, _PARENTS)
        tokens = data.draw(st.lists(st.sampled_from(_TOKENS), max_size=3))
        extra_keys = one_of(data, [None, *EXTRA_KEYS[1:], *_MORE_KEYS])
        spelling = self.spelling(data, NUMBERS)
        self.call(
            f"hash_page_tokens({self.function}, {parent!r}, {spelling.source(tokens)}, {extra_keys}, none_hash=root)",
            lambda side: side.names.get("hash_page_tokens")(
                side.function, parent, spelling.of(tokens), extra_keys, none_hash=side.root
            ),
            "HASH-1" if extra_keys is None else "HASH-2",
            _key,
        )

    @step("HASH-1", "HASH-2", "HASH-3")
    def hash_request_tokens(self, data: Drawing) -> None:
        """The keys of a request: of its full pages only, each with the extra keys that touch it, in any order."""
        size = data.draw(st.integers(1, 3))
        tokens = data.draw(st.lists(st.sampled_from(_TOKENS), max_size=7))
        extra_keys: tuple[ExtraKey, ...] = one_of(data, EXTRA_KEYS)
        if rarely(data):
            extra_keys = tuple(reversed(extra_keys))
        made = self.token_spelling(data), "r", tokens, extra_keys
        request = request_as(*made)
        self.call(
            f"hash_request_tokens({self.function}, {size}, {request_source(*made)}, none_hash=root)",
            lambda side: side.names.get("hash_request_tokens")(side.function, size, request, none_hash=side.root),
            "HASH-1",
            _keys,
            blame=_blame,
            also=("HASH-2", "HASH-3"),
        )

    @step("HASH-1")
    def draw_a_root(self, _: Drawing) -> None:
        """A root without a seed is drawn anew each time, whatever Python's own seed is; another seed gives another."""
        self.calls.append("init_none_hash() != init_none_hash()")
        init = self.backend.names.get("init_none_hash")
        with patch.dict(os.environ, PYTHONHASHSEED="random"):
            self.check("HASH-1", "two roots without a seed differ", True, lambda: init() != init())
        self.check("HASH-1", "roots of two seeds differ", True, lambda: init(b"1") != init(b"2"))

    @step("HASH-1", "HASH-2")
    def misuse(self, data: Drawing) -> None:
        """A parent, tokens, extra keys, a page size or a hash function of the wrong kind."""
        parent, tokens, extra = one_of(
            data,
            [
                *((parent, [0], None) for parent in (0, -1, "a", True)),
                *((None, tokens, None) for tokens in ([True], [0.0], ["a"], None, [0, 2**31], [-(2**31) - 1])),
                *((None, [0], extra) for extra in ([CacheSalt("a")], (1.5,), (object,), (True,), "a", (2**63,))),
            ],
        )
        self.call(
            f"hash_page_tokens({self.function}, {parent!r}, {tokens}, {extra}, none_hash=root)",
            lambda side: side.names.get("hash_page_tokens")(side.function, parent, tokens, extra, none_hash=side.root),
            "HASH-1",
            _key,
        )
        size, extras = one_of(
            data, [*((size, ()) for size in (0, -1, *NO_INTS)), *((1, extras) for extras in _BAD_EXTRA_KEYS)]
        )
        request = Request("r", [0, 1], extras)
        self.call(
            f"hash_request_tokens({self.function}, {size!r}, Request('r', [0, 1], {extras}), none_hash=root)",
            lambda side: side.names.get("hash_request_tokens")(side.function, size, request, none_hash=side.root),
            "HASH-1",
            _keys,
        )
        seed = one_of(data, ["a", 1])
        self.call(f"init_none_hash({seed!r})", lambda side: side.names.get("init_none_hash")(seed), "HASH-1")
        self.call(
            "hash_page_tokens(hash, None, [0], none_hash=root)",
            lambda side: side.names.get("hash_page_tokens")(hash, None, [0], none_hash=side.root),
            "HASH-1",
        )


def _blame(expected: Any, observed: Any) -> str:
    """The clause of a list of wrong keys: its length or tokens, its extra keys, or its bytes."""
    if len(expected) != len(observed):
        return "HASH-3"
    for (digest, tokens, extra_keys), found in zip(expected, observed, strict=True):
        if found[1] != tokens:
            return "HASH-3"
        if found[2] != extra_keys or found[0] != digest:
            return "HASH-2" if extra_keys is not None or found[2] is not None else "HASH-1"
    return "HASH-1"
