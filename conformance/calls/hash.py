"""The table of the functions that make keys of pages.

What is known when a call is drawn is a machine's (`kvproof.conformance.machines.hash`): the name of the hash function,
and which extra keys requests have. The root of all keys is ``root``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter, MultimodalItem, PromptEmbeddings

from .datum import Prompt, Ref
from .kinds import PLAIN, number, spelled, wrong, wrong_numbers
from .method import Given, Kind, Method, Table
from .source import Source
from .spelling import NUMBERS
from .values import EXTRA_KEYS, NO_INTS

__all__ = ["HASHING"]

_TOKENS = (0, 1, -1, -2, 2**31 - 1, -(2**31))
_NO_TOKENS: tuple[Any, ...] = ([True], [0.0], ["a"], None, [0, 2**31], [-(2**31) - 1])
_PARENTS = (None, b"", b"\x00", b"a", b"\x00" * 32)
_MORE_KEYS: tuple[Any, ...] = ((), (None,), ("a",), (b"a",), (0,), (-1,), (("a",), ()), ("", b""))
_NO_KEYS: tuple[Any, ...] = ([CacheSalt("a")], (1.5,), (object,), (True,), "a", (2**63,))
_BAD_EXTRA_KEYS: tuple[Any, ...] = (
    (CacheSalt("a"), CacheSalt("b")),
    (LoraAdapter("a"), LoraAdapter("a")),
    (MultimodalItem(b"a", 0, 0),),
    (MultimodalItem(b"a", -1, 1),),
    (MultimodalItem(b"a", True, 1),),
    (MultimodalItem(b"a", 0, 1), MultimodalItem(b"a", 0, 1)),
    ("a salt by itself",),
)
_AT_ONE_PLACE: tuple[tuple[ExtraKey, ...], ...] = (
    (MultimodalItem(b"b", 0, 2), MultimodalItem(b"a", 0, 2)),
    (PromptEmbeddings(b"b", 1, 1), PromptEmbeddings(b"a", 1, 1), PromptEmbeddings(b"a", 1, 2)),
)
"""Items that begin alike: of these the longer one comes later, and of equal ones that with the larger content."""

_ROOT = Ref("root")


def _key(key: Any, _: Any) -> tuple[Any, ...]:
    return (key.hash_value, tuple(key.token_ids), key.extra_keys)


def _page(source: Source, known: Any) -> Given:
    """A page after any parent, with extra keys of any kind and with values that have an encoding."""
    return {
        "hash_function": Ref(known.function),
        "parent_page_hash": source.one_of(_PARENTS),
        "curr_page_token_ids": spelled(source, known, source.several(_TOKENS, 3), NUMBERS),
        "extra_keys": source.one_of([None, *EXTRA_KEYS[1:], *_MORE_KEYS]),
        "none_hash": _ROOT,
    }


def _request(source: Source, known: Any) -> Given:
    """A request whose extra keys stand in any order."""
    size, keys = source.integer(1, 3), source.one_of((*EXTRA_KEYS, *_AT_ONE_PLACE))
    prompt = Prompt(
        tuple(source.several(_TOKENS, 7)),
        keys[::-1] if source.rarely() else keys,
        source.token_spelling(known.takes_iterables),
    )
    return {"hash_function": Ref(known.function), "page_size": size, "request": prompt, "none_hash": _ROOT}


def _blame(expected: Sequence[Any], observed: Sequence[Any]) -> str:
    """The clause of a list of wrong keys: its length or tokens, its extra keys, or its bytes."""
    if len(expected) != len(observed):
        return "HASH-3"
    for (digest, tokens, extra_keys), found in zip(expected, observed, strict=True):
        if found[1] != tokens:
            return "HASH-3"
        if found[2] != extra_keys or found[0] != digest:
            return "HASH-2" if extra_keys is not None or found[2] is not None else "HASH-1"
    return "HASH-1"


_FUNCTION = wrong(hash, good=lambda _, known: Ref(known.function))
_SEED = wrong("a", 1, good=lambda source, _: source.one_of([b"", b"kvproof", b"\x00" * 32]))
_ASKED = Kind(
    "request", fault=lambda source, _, given: replace(given["request"], extra_keys=source.one_of(_BAD_EXTRA_KEYS))
)


def _function(name: str, arguments: Mapping[str, Kind], result: Kind, **more: Any) -> Method:
    by_name = ("none_hash",) if "draw" in more else ()
    return Method(*(name, arguments, result, "HASH-1"), reads=True, by_name=by_name, logged=False, **more)


HASHING = Table(
    "keys",
    "",
    (
        _function(
            "hash_page_tokens",
            {
                "hash_function": _FUNCTION,
                "parent_page_hash": wrong(0, -1, "a", True),
                "curr_page_token_ids": wrong_numbers(*_NO_TOKENS),
                "extra_keys": wrong(*_NO_KEYS),
            },
            Kind("key", plain=_key),
            where=lambda _, given: "HASH-1" if given["extra_keys"] is None else "HASH-2",
            refuses=("HASH-2",),
            weight=2,
            spoils=3,
            draw=_page,
        ),
        _function(
            "hash_request_tokens",
            {"hash_function": _FUNCTION, "page_size": number(faults=(0, -1, *NO_INTS)), "request": _ASKED},
            Kind("keys", plain=lambda keys, side: [_key(key, side) for key in keys]),
            refuses=("HASH-2", "HASH-3"),
            blame=_blame,
            weight=2,
            spoils=2,
            draw=_request,
        ),
        _function("init_none_hash", {"seed": _SEED, "hash_function": _FUNCTION}, PLAIN, weight=1, spoils=1),
    ),
)
