"""The hash machine: the keys of pages, byte by byte."""

import os
from typing import ClassVar
from unittest.mock import patch

from hypothesis import strategies as st

from ..backends.levels import LEVELS
from ..backends.loading import Backend
from ..calls.datum import Call, Ref
from ..calls.hash import HASHING
from ..calls.method import Table
from .calling import Calling, Calls
from .draws import Drawing
from .properties import start, step

__all__ = ["Hash", "weak"]

_SEEDED = (
    ("init_none_hash", "seed"),
    ("init_none_hash", "hash_function"),
    ("hash_page_tokens", "none_hash"),
    ("hash_request_tokens", "none_hash"),
)


def weak(message: bytes) -> bytes:
    """A hash function that collides all the time: whatever stands on it must not trust it (R2)."""
    return bytes([sum(message) % 3])


class Hash(Calling):
    """Its calls have no state; with the same seed both sides give the same bytes (HASH-1)."""

    name = "hash"
    levels = frozenset(LEVELS)
    capability = "keys"
    examples = 40
    needs = ("hash_page_tokens", "hash_request_tokens", "init_none_hash", "sha256")
    always = frozenset({"R1"})
    tables: ClassVar[tuple[Table, ...]] = (HASHING,)

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """Beside the functions, the parameters by which they are told the seed."""
        lacking = super().missing(backend)
        return lacking or [f"{function}({name}=)" for function, name in _SEEDED if not backend.accepts(function, name)]

    @start("HASH-1", seed=st.sampled_from([b"", b"kvproof", b"\x00" * 32]), collides=st.booleans())
    def seed(self, seed: bytes, collides: bool) -> None:
        """The root of a seed."""
        self.function = "weak" if collides else "sha256"
        root = Call(None, "init_none_hash", {"seed": seed, "hash_function": Ref(self.function)})
        self.build_things(f"root = init_none_hash({seed!r}, {self.function})", "HASH-1", {"weak": weak, "root": root})
        self.check("HASH-1", "root", self.spec.root, lambda: self.backend.root)

    @step("HASH-1")
    def draw_a_root(self, _: Drawing) -> None:
        """A root without a seed differs each time, also where Python's own seed is set; another seed, another root."""
        self.calls.append("init_none_hash() != init_none_hash()")
        init = self.backend.names.get("init_none_hash")
        with patch.dict(os.environ, PYTHONHASHSEED="random"):
            self.check("HASH-1", "two roots without a seed differ", True, lambda: init() != init())
        self.check("HASH-1", "roots of two seeds differ", True, lambda: init(b"1") != init(b"2"))

    @step("HASH-1", "HASH-2", "HASH-3", weight=3)
    def misuse(self, source: Drawing) -> Calls:
        """Makes a call with one fault."""
        yield self.spoilt(source.one_of(self.spoilable()), source)
