"""HASH-1 to HASH-3: the keys of full pages are the documented bytes in both packages; what has none is refused."""

import hashlib
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.spec.clauses import clause_of_message

from ..strategies import (
    PlainRequest,
    generic_values,
    page_sizes,
    plain_requests,
    spelled,
    spellings,
    token_lists,
    tokens,
)

SEED = b"seed"


def _keys(package: ModuleType, request: Any, page_size: int = 2, seed: bytes = SEED) -> list[Any]:
    return list(package.hash_request_tokens(package.sha256, page_size, request, none_hash=package.init_none_hash(seed)))


def _digests(package: ModuleType, values: list[int], extra: Any = (), page_size: int = 2) -> list[bytes]:
    return [key.hash_value for key in _keys(package, PlainRequest("r", values, extra), page_size)]


# -- HASH-1: one documented encoding --------------------------------------------------------------


def _encoded(value: Any) -> bytes:
    """The documented encoding of one value, written down once more."""
    if value is None:
        return b"n"
    if isinstance(value, int):
        return b"i" + struct.pack("<q", value)
    if isinstance(value, bytes):
        return b"b" + struct.pack("<Q", len(value)) + value
    if isinstance(value, str):
        return b"s" + struct.pack("<Q", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"t" + struct.pack("<Q", len(value)) + b"".join(map(_encoded, value))
    names = ["CacheSalt", "LoraAdapter", "WeightsVersion", "MultimodalItem", "PromptEmbeddings"]
    return b"k" + bytes([1 + names.index(type(value).__name__)]) + b"".join(map(_encoded, vars(value).values()))


def _documented(page_size: int, values: list[int], extra_of_page: Callable[[int], Any], seed: bytes) -> list[bytes]:
    digest = hashlib.sha256(b"kvproof page key 2" + seed).digest()
    chain = []
    for start in range(0, len(values) - page_size + 1, page_size):
        extra = extra_of_page(start)
        message = b"\0" if extra is None else b"\1" + _encoded(extra)
        message += struct.pack(f"<{page_size}i", *values[start : start + page_size])
        digest = hashlib.sha256(digest + message).digest()
        chain.append(digest)
    return chain


@given(request=plain_requests(), page_size=page_sizes, seed=st.binary(max_size=4))
def test_hash_1_keys_are_the_documented_bytes(
    package: ModuleType, request: PlainRequest, page_size: int, seed: bytes
) -> None:
    order = ["CacheSalt", "LoraAdapter", "WeightsVersion", "MultimodalItem", "PromptEmbeddings"]
    given_keys = sorted(
        request.extra_keys or (),
        key=lambda key: (
            order.index(type(key).__name__),
            getattr(key, "offset", 0),
            getattr(key, "length", 0),
            getattr(key, "content", b""),
        ),
    )

    def extra_of_page(start: int) -> Any:
        page = set(range(start, start + page_size))
        touching = [
            key
            for key in given_keys
            if isinstance(key, spec.CacheSalt | spec.LoraAdapter | spec.WeightsVersion)
            or page & set(range(key.offset, key.offset + key.length))
        ]
        return tuple(touching) or None

    values = [int(token) for token in request.all_token_ids]
    keys = _keys(package, request, page_size, seed)
    assert [key.hash_value for key in keys] == _documented(page_size, values, extra_of_page, seed)
    for place, key in enumerate(keys):
        assert key.token_ids == tuple(values[place * page_size : (place + 1) * page_size])
        assert key.extra_keys == extra_of_page(place * page_size)


def test_hash_1_pinned_vector(package: ModuleType) -> None:
    """The same on every platform, in every version that calls its encoding 2, with any PYTHONHASHSEED."""
    request = PlainRequest("r", [0, -1, 2**31 - 1, 5, 9], (spec.CacheSalt("tenant"), spec.MultimodalItem(b"img", 2, 1)))
    first, second = _keys(package, request)
    assert first.hash_value.hex() == "ec0cd90ab19e7203c3932264edd2bf868bc4dbd33d5235a824a81b36c322fc0d"
    assert second.hash_value.hex() == "90f943f40c947db44c4e4c34f703355aea092a7555fa32df9cab84be3630d9b0"


def test_r1_a_seed_is_refused_under_the_name_that_it_was_given_by(package: ModuleType) -> None:
    with pytest.raises(TypeError, match=r"^seed must be bytes or None, not str \[R1\]$"):
        package.init_none_hash("s")
    with pytest.raises(TypeError, match=r"^hash_seed must be bytes or None, not str \[R1\]$"):
        package.PagePool(2, True, hash_seed="s")


def test_hash_1_no_seed_draws_one_each_time(package: ModuleType) -> None:
    assert package.init_none_hash() != package.init_none_hash()
    pools = [package.PagePool(2, True) for _ in range(2)]
    assert pools[0].none_hash != pools[1].none_hash


def test_hash_1_only_none_means_root(package: ModuleType) -> None:
    root = package.init_none_hash(SEED)

    def first(parent: bytes | None) -> bytes:
        key = package.hash_page_tokens(package.sha256, parent, [1, 2], none_hash=root)
        return bytes(key.hash_value)

    parents = [None, b"", b"\0", bytes(32)]
    assert len({first(parent) for parent in parents}) == len(parents)
    assert first(None) == first(root)


def test_hash_1_a_hash_function_of_ones_own_is_used_for_root_and_pages(package: ModuleType) -> None:
    seen: list[bytes] = []

    def own(message: bytes) -> bytes:
        seen.append(message)
        return b"%02d" % len(seen)

    root = package.init_none_hash(b"s", own)
    keys = package.hash_request_tokens(own, 1, PlainRequest("r", [5, 6]), none_hash=root)
    assert [key.hash_value for key in keys] == [b"02", b"03"]
    assert seen == [b"kvproof page key 2s", b"01\0\5\0\0\0", b"02\0\6\0\0\0"]


@given(values=st.lists(tokens, max_size=9), spelling=spellings)
def test_hash_1_tokens_are_read_alike_from_lists_and_arrays(
    package: ModuleType, values: list[int], spelling: Any
) -> None:
    """R1: numpy integers are ints."""
    plain = _keys(package, PlainRequest("r", values))
    assert _keys(package, PlainRequest("r", spelled(values, spelling))) == plain
    one = package.hash_page_tokens(package.sha256, b"parent", spelled(values, spelling))
    assert one == package.hash_page_tokens(package.sha256, b"parent", values)
    assert all(type(token) is int for token in one.token_ids)


# -- HASH-2: extra keys ---------------------------------------------------------------------------


def test_hash_2_kinds_and_emptiness_are_told_apart(package: ModuleType) -> None:
    """None, an empty tuple, an empty salt, and one text as salt, adapter and version: nobody shares with another."""
    extras: list[Any] = [
        None,
        (),
        (None,),
        (spec.CacheSalt(""),),
        (spec.LoraAdapter(""),),
        (spec.CacheSalt("a"),),
        (spec.LoraAdapter("a"),),
        (spec.WeightsVersion("a"),),
        (spec.MultimodalItem(b"a", 0, 2),),
        (spec.MultimodalItem(b"a", 0, 1),),
        (spec.MultimodalItem(b"a", 1, 1),),
        (spec.PromptEmbeddings(b"a", 0, 2),),
        (spec.CacheSalt("a"), spec.LoraAdapter("b")),
        (spec.CacheSalt("ab"), spec.LoraAdapter("")),
        ("a",),
        (b"a",),
        (0,),
    ]
    digests = {package.hash_page_tokens(package.sha256, None, [1, 2], extra).hash_value for extra in extras}
    assert len(digests) == len(extras)


@given(st.lists(st.lists(generic_values, max_size=3).map(tuple), min_size=2, max_size=4, unique_by=repr), tokens)
def test_hash_2_generic_values_are_told_apart(package: ModuleType, extras: list[Any], token: int) -> None:
    digests = {package.hash_page_tokens(package.sha256, b"", [token], extra).hash_value for extra in extras}
    assert len(digests) == len(extras)


@given(st.lists(generic_values, max_size=3).map(tuple), token_lists)
def test_hash_2_both_packages_encode_generic_values_alike(extra: Any, values: list[int]) -> None:
    key = spec.hash_page_tokens(spec.sha256, b"p", values, extra)
    assert fast.hash_page_tokens(fast.sha256, b"p", values, extra) == fast.PageHash(*key)


def _wrong(value: Any) -> Any:
    """A value of a type that a field has not."""
    return value


def test_r1_extra_keys_with_numpy_positions_are_those_with_plain_ones(package: ModuleType) -> None:
    """R1: numpy integers are ints; engines compute offsets with numpy."""
    positions: list[Any] = [np.int64(1), np.int32(2)]
    item = spec.MultimodalItem(b"a", *positions)
    assert _digests(package, [1, 2, 3, 4], (item,)) == _digests(
        package, [1, 2, 3, 4], (spec.MultimodalItem(b"a", 1, 2),)
    )


@pytest.mark.parametrize(
    "extra",
    [
        (spec.MultimodalItem(b"a", 0, 1), spec.MultimodalItem(_wrong("a"), 0, 1)),
        (spec.LoraAdapter("\ud800"),),
        (spec.LoraAdapter(_wrong(5)),),
    ],
    ids=["bytes and str", "lone surrogate", "name of a wrong type"],
)
def test_r1_extra_keys_with_a_wrong_field_are_refused_by_name(package: ModuleType, extra: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"extra_keys.*\[(HASH-2|R1)\]"):
        _keys(package, PlainRequest("r", [1, 2], extra))


def test_sec_2_a_salt_keeps_no_text() -> None:
    salt = spec.CacheSalt("secret")
    assert salt == spec.CacheSalt("secret") == spec.CacheSalt.of_fingerprint(salt.fingerprint) != spec.CacheSalt("")
    assert "secret" not in repr(salt) + repr(vars(salt))
    for wrong, kind in ((_wrong(5), TypeError), ("secret\ud800", ValueError)):
        with pytest.raises(kind, match=r"\[HASH-2\]") as caught:
            spec.CacheSalt(wrong)
        assert "secret" not in repr(caught.value)
    with pytest.raises(TypeError, match="fingerprint"):
        spec.CacheSalt.of_fingerprint(_wrong("a"))


def test_sec_2_a_refused_salt_is_not_printed(package: ModuleType) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        _keys(package, PlainRequest("r", [1, 2], (spec.CacheSalt("secret"), spec.CacheSalt("another"))))
    assert "secret" not in repr(caught.value)


# -- HASH-3: full pages only ----------------------------------------------------------------------


@given(request=plain_requests(), page_size=page_sizes)
def test_hash_3_the_keys_of_a_request_are_the_chain_of_its_pages(
    package: ModuleType, request: PlainRequest, page_size: int
) -> None:
    parent = None
    for place, key in enumerate(_keys(package, request, page_size)):
        page = request.all_token_ids[place * page_size : (place + 1) * page_size]
        root = package.init_none_hash(SEED)
        assert key == package.hash_page_tokens(package.sha256, parent, page, key.extra_keys, none_hash=root)
        parent = key.hash_value


# -- R1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.0], TypeError),
        ([1, True], TypeError),
        ([1, np.True_], TypeError),
        ([1, None], TypeError),
        ([1, "2"], TypeError),
        ("12", TypeError),
        (12, TypeError),
        (np.array([1.0, 2.0]), TypeError),
        (np.array([True, False]), TypeError),
        (np.array([[1, 2]]), TypeError),
        ([1, 2**31], ValueError),
        ([1, -(2**31) - 1], ValueError),
        (np.array([1, 2**31]), ValueError),
        (np.array([1, 2**64 - 1], np.uint64), ValueError),
    ],
    ids=repr,
)
def test_r1_what_is_no_token_is_refused_by_name(package: ModuleType, values: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="curr_page_token_ids") as caught:
        package.hash_page_tokens(package.sha256, None, values)
    assert clause_of_message(str(caught.value)) == "R1"
    with pytest.raises(kind, match=r"request\.all_token_ids"):
        package.hash_request_tokens(package.sha256, 1, PlainRequest("r", values))


def test_r1_what_is_no_request_is_refused_by_name(package: ModuleType) -> None:
    with pytest.raises(TypeError, match="request"):
        package.hash_request_tokens(package.sha256, 2, None)


@pytest.mark.parametrize("none_hash", [5, "root"])
def test_r1_a_root_that_is_no_digest_is_refused(package: ModuleType, none_hash: Any) -> None:
    with pytest.raises(TypeError, match=r"\[HASH-1\]"):
        package.hash_request_tokens(package.sha256, 1, PlainRequest("r", [1]), none_hash=none_hash)


# -- fast's lazy list -----------------------------------------------------------------------------


@given(request=plain_requests(), page_size=page_sizes, data=st.data())
def test_hash_3_the_lazy_list_is_the_list_of_its_keys(
    request: PlainRequest, page_size: int, data: st.DataObject
) -> None:
    keys = fast.hash_request_tokens(fast.sha256, page_size, request, none_hash=SEED)
    listed = [fast.PageHash(*key) for key in spec.hash_request_tokens(spec.sha256, page_size, request, none_hash=SEED)]
    assert keys == listed
    assert listed == keys
    assert keys == tuple(listed)
    assert keys != [*listed, None]
    assert len(keys) == len(listed)
    assert list(reversed(keys)) == listed[::-1]
    part = data.draw(st.slices(len(listed)))
    assert keys[part] == listed[part]
    for place in range(-len(listed), len(listed)):
        assert keys[place] == listed[place]
    for place in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            keys[place]


@given(mine=plain_requests(), theirs=plain_requests(), cut=st.integers(0, 8), data=st.data())
def test_hash_3_agrees_says_whether_leading_keys_are_those_of_other_tokens(
    mine: PlainRequest, theirs: PlainRequest, cut: int, data: st.DataObject
) -> None:
    """It is asked with more, as many and fewer pages than there are, for requests that share a beginning."""
    if data.draw(st.booleans()):
        theirs = PlainRequest("r", [*mine.all_token_ids[:cut], *theirs.all_token_ids[cut:]], theirs.extra_keys)
    if data.draw(st.booleans()):
        theirs.extra_keys = mine.extra_keys
    one, other = (fast.hash_request_tokens(fast.sha256, 2, request, none_hash=SEED) for request in (mine, theirs))
    count = data.draw(st.integers(0, 5))
    wanted = min(count, len(one))
    assert one.agrees(other.tokens, other.segments, count) == (list(one)[:wanted] == list(other)[:wanted])
