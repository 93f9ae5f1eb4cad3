"""SEC-3, SWAP-2: files of exported prefixes are hostile bytes: what is refused, what it costs, what a key is for."""

import io
import json
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec

PACKAGES = {"spec": spec, "fast": fast}
KEY = bytes(range(32))
HEADER: dict[str, Any] = {
    "kvproof": "exported prefix",
    "version": 1,
    "model": "a model",
    "root": "00" * 32,
    "groups": [],
    "caches": [],
    "num_tokens": 8,
    "keys": [["11" * 32] * 2],
}
ARRAYS = {
    "0.0.0": np.arange(2 * 4 * 3, dtype=np.uint16).reshape(2, 4, 3),
    "0.0.1": np.arange(8, dtype=np.uint32).reshape(2, 4),
    "1.0.0": np.zeros((0, 5), np.uint8),
}
FILE: bytes = fast.ExportedPrefix(HEADER, ARRAYS).to_bytes()


def outcome(package: ModuleType, data: bytes, **options: Any) -> tuple[Any, str]:
    """What a file holds, or the text of its refusal; any other error, and more memory than it may take, fails."""
    tracemalloc.start()
    try:
        read = package.ExportedPrefix.from_bytes(data, **options)
        held: Any = json.dumps(read.header), {name: own.tolist() for name, own in read.arrays.items()}
        message = ""
    except ValueError as error:
        held, message = None, str(error)
        assert message.startswith("data"), message
        assert message.endswith("[SEC-3]"), message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < (1 << 16) + 32 * len(data), f"{peak} bytes for a file of {len(data)}"
    return held, message


def zipped(members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of members, which may have one name twice."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            with warnings.catch_warnings(action="ignore"):  # of a name that stands there twice
                archive.writestr(info, content)
    return file.getvalue()


def npy(header: str, body: bytes = b"", version: int = 1) -> bytes:
    """An array in numpy's format with a header as given."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + body


def own_members() -> list[tuple[str, bytes]]:
    """The members of FILE."""
    with zipfile.ZipFile(io.BytesIO(FILE)) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def changed(**fields: Any) -> bytes:
    """FILE with another header."""
    return fast.ExportedPrefix(HEADER | fields, ARRAYS).to_bytes()


SHAPE = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }"
WRONG: dict[str, Callable[[], bytes]] = {
    "deflated": lambda: zipped([*own_members(), ("2.0.0.npy", bytes(1 << 26))], zipfile.ZIP_DEFLATED),
    "bz2": lambda: zipped([*own_members(), ("2.0.0.npy", bytes(1 << 24))], zipfile.ZIP_BZIP2),
    "lzma": lambda: zipped([*own_members(), ("2.0.0.npy", bytes(1 << 24))], zipfile.ZIP_LZMA),
    "a member twice": lambda: zipped([*own_members(), own_members()[-1]]),
    "a member of another name": lambda: zipped([*own_members(), ("more.npy", own_members()[-1][1])]),
    "something before it": lambda: b"#!/bin/sh\n" + FILE,
    "another order of bytes": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE.replace("<", ">"), b"1234"))]),
    "columns first": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE.replace("False", "True"), b"1234"))]),
    "objects": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE.replace("<u2", "|O"), b"1234"))]),
    "version 2": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE, b"1234", version=2))]),
    "a shape of any length": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE.replace("2,", "2," * 9999)))]),
    "parentheses": lambda: zipped([*own_members(), ("2.0.0.npy", npy("(" * 60_000))]),
    "an open bracket": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE[:-20]))]),
    "an integer of any size": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE.replace("2,", "9" * 5000)))]),
    "a size past memory": lambda: zipped([*own_members(), ("2.0.0.npy", npy(SHAPE.replace("2,", f"0, {2**62}")))]),
    "no header": lambda: zipped(own_members()[1:]),
    "no JSON": lambda: zipped([("header.npy", npy(SHAPE.replace("<u2", "|u1"), b"[["))]),
    "a header nested deeply": lambda: zipped(
        [("header.npy", npy(SHAPE.replace("<u2", "|u1").replace("2,", "100000,"), b"[" * 100_000))]
    ),
    "num_tokens no integer": lambda: changed(num_tokens="8"),
    "num_tokens true": lambda: changed(num_tokens=True),
    "no tokens": lambda: changed(num_tokens=0),
    "version true": lambda: changed(version=True),
    "version 1.0": lambda: changed(version=1.0),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("package", PACKAGES)
def test_what_no_export_writes_is_refused_for_what_the_file_itself_costs(package: str, what: str) -> None:
    """SEC-3: a file that claims more than it has, is compressed or names code is refused, and takes no memory."""
    data = WRONG[what]()
    assert len(data) < 1 << 20
    held, message = outcome(PACKAGES[package], data)
    assert held is None, message


@pytest.mark.parametrize("package", PACKAGES)
def test_the_arrays_of_a_file_are_bounded(package: str) -> None:
    """SEC-3: ``max_bytes`` holds for what the arrays take."""
    size = sum(len(content) for _, content in own_members())
    assert outcome(PACKAGES[package], FILE, max_bytes=size)[0] is not None
    assert f"max_bytes={size - 1}" in outcome(PACKAGES[package], FILE, max_bytes=size - 1)[1]


ODD = (
    b"\xff" * 4,
    b"\0" * 4,
    b"\xff" * 8,
    b"\x08\0",
    b"\x0c\0",
    b"\x0e\0",
    b"PK\1\2",
    b"PK\5\6",
    b"PK\6\6",
    b"((((",
    b"[[[[",
)
"""Bytes that mean something in an archive: sizes, ways of compression, the marks of records, what nests."""


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """FILE with some of its bytes changed, mostly where its headers are."""
    data = bytearray(FILE)
    directory = data.index(b"PK\1\2")
    for _ in range(draw(st.integers(1, 4))):
        zones = st.integers(directory, len(FILE)) | st.integers(0, 200) | st.integers(0, len(FILE))
        place = min(draw(zones), len(data))
        match draw(st.sampled_from(["bit", "odd", "insert", "delete", "repeat"])):
            case "bit" if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "odd":
                new = draw(st.sampled_from(ODD))
                data[place : place + len(new)] = new
            case "insert":
                data[place:place] = draw(st.sampled_from(ODD))
            case "delete":
                del data[place : place + draw(st.sampled_from([1, 2, 4, 64]))]
            case _:
                start = draw(st.integers(0, len(data)))
                data[place:place] = data[start : start + draw(st.sampled_from([1, 30, 100, 1000]))]
    return bytes(data)


@settings(max_examples=1000, deadline=None)
@given(mutants())
def test_a_damaged_file_is_refused_or_read_alike_by_both(data: bytes) -> None:
    """SEC-3: nothing but a refusal leaves `from_bytes`, whatever is in a file; both packages take the same files."""
    ours, theirs = (outcome(package, data)[0] for package in PACKAGES.values())
    assert ours == theirs


@pytest.mark.parametrize("writer", PACKAGES)
@pytest.mark.parametrize("reader", PACKAGES)
def test_a_signed_file_is_read_by_its_key_alone(writer: str, reader: str) -> None:
    """SWAP-2: with a key, a file of another key, of none, or that was changed anywhere is refused."""
    signed = PACKAGES[writer].ExportedPrefix(HEADER, ARRAYS).to_bytes(KEY)
    package = PACKAGES[reader]
    assert outcome(package, signed, key=KEY)[0] == outcome(package, FILE)[0] != (None, "")
    for data, key in (
        (signed, None),
        (signed, KEY[::-1]),
        (FILE, KEY),
        (signed[:30], KEY),
        (b"", KEY),
        (FILE[:30], KEY),
    ):
        assert outcome(package, data, key=key)[0] is None

    for place in range(len(signed)):
        wrong = bytearray(signed)
        wrong[place] ^= 1
        with pytest.raises(ValueError, match=r"\[SEC-3\]$"):
            package.ExportedPrefix.from_bytes(bytes(wrong), key=KEY)


@pytest.mark.parametrize("package", PACKAGES)
def test_keys_are_refused_without_being_shown(package: str) -> None:
    """R1, SEC-2: a key is at least 16 bytes, and stands in no message."""
    exported = PACKAGES[package].ExportedPrefix(HEADER, ARRAYS)
    calls: list[Callable[[Any], Any]] = [exported.to_bytes, lambda key: type(exported).from_bytes(FILE, key=key)]
    for call in calls:
        with pytest.raises(TypeError, match=r"^key.*str.*\[R1\]$") as text:
            call("a secret of ample length")
        with pytest.raises(ValueError, match=r"^key.*15.*16.*\[R1\]$") as short:
            call(b"a secret, short")
        assert "secret" not in f"{text.value} {short.value}"
