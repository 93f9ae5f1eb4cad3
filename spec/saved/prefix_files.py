"""SWAP-2, SEC-3: the file of an exported prefix: how it is written, and how it is read whoever may have written it.

::

    signature       only where a key was given: the line "kvproof signed 1", then the HMAC-SHA256, by that key, of this
                    line with its end and of the archive
    archive         a zip archive whose members are stored, not compressed: "header.npy", and the pages as
                    "<group>.<layer>.<part>.npy". Each is an array in numpy's format, version 1.0, C order, of unsigned
                    integers, little-endian

    header          JSON as bytes: kvproof "exported prefix"; version 1; model: the fingerprint that was given;
                    root: the root of the keys, hexadecimal; groups: the declarations as in a snapshot, without
                    layer names; caches: for each group how its pages are laid out; num_tokens; keys: for each
                    group the digests of its pages, hexadecimal
    pages           pages of attention, values and scales where there are scales, or the arrays of a state

A file holds no more than its own bytes: nothing is decompressed, no size is believed that is not there, nothing is
unpickled or evaluated.
"""

import hashlib
import hmac
import io
import json
import re
import struct
import zipfile
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import refusal

__all__ = ["KIND", "VERSION", "read_prefix_file", "written_prefix_file"]

KIND = "exported prefix"
VERSION = 1
_FIELDS = {"kvproof", "version", "model", "root", "groups", "caches", "num_tokens", "keys"}
_SIGNED = b"kvproof signed 1\n"
_LEAST_KEY = 16
_NAME = re.compile(r"(header|[0-9]+\.[0-9]+\.[0-9]+)\.npy")
_ARRAY = re.compile(
    rb"\{'descr': '(\|u1|<u2|<u4|<u8)', 'fortran_order': False, "
    rb"'shape': \(((?:[0-9]{1,18}, ?){0,7}[0-9]{0,18})\), \} *\n"
)


def written_prefix_file(header: dict[str, Any], arrays: dict[str, NDArray[Any]], key: bytes | None) -> bytes:
    """The file of a prefix.

    Args:
        header: its header.
        arrays: its pages, by ``group.layer.part``.
        key: signs the file; None: it is not signed.

    Raises:
        TypeError: the key is not bytes.
        ValueError: the key is shorter than 16 bytes (R1).
    """
    _require_key(key)
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(file, allow_pickle=False, header=text, **{name: np.ascontiguousarray(own) for name, own in arrays.items()})
    archive = file.getvalue()
    return archive if key is None else _SIGNED + _signature(key, archive) + archive


def read_prefix_file(data: bytes, max_bytes: int, key: bytes | None) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the pages of a file.

    Args:
        data: the file.
        max_bytes: the most bytes that its arrays may have.
        key: what it must be signed by; None: it must not be signed.

    Raises:
        TypeError: the key is not bytes.
        ValueError: the key is too short (R1); the file is not signed by it, damaged or too large (SEC-3).
    """
    _require_key(key)
    parts = _members(_archive(data, key), max_bytes)
    try:
        header = json.loads(parts.pop("header").tobytes().decode())
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(f"its header can't be read: {type(error).__name__}") from None
    if not isinstance(header, dict) or header.keys() != _FIELDS:
        raise _damaged(f"its header must have the fields {sorted(_FIELDS)}")
    if header["kvproof"] != KIND or type(header["version"]) is not int or header["version"] != VERSION:
        raise _damaged(f"it must be of the kind {KIND!r}, version {VERSION}")
    if type(header["num_tokens"]) is not int or header["num_tokens"] < 1:
        raise _damaged("its num_tokens must be an integer of at least 1")
    return header, parts


def _damaged(problem: str) -> Exception:
    return refusal(ValueError, "SEC-3", f"data is no exported prefix: {problem}")


# -- Signatures -----------------------------------------------------------------------------------


def _require_key(key: object) -> None:
    """Refuses what is no key, without showing it (SEC-2)."""
    if key is not None and not isinstance(key, bytes):
        raise refusal(TypeError, "R1", f"key must be bytes, not {type(key).__name__}")
    if key is not None and len(key) < _LEAST_KEY:
        raise refusal(ValueError, "R1", f"key has {len(key)} bytes, it must have at least {_LEAST_KEY}")


def _signature(key: bytes, archive: bytes) -> bytes:
    return hmac.new(key, _SIGNED + archive, hashlib.sha256).digest()


def _archive(data: bytes, key: bytes | None) -> bytes:
    """The archive of a file, once the file was found to be signed by the key, or not at all."""
    if data.startswith(_SIGNED) != (key is not None):
        raise _damaged("it is not signed, and a key was given" if key is not None else "it is signed: give its key")
    if key is None:
        return data
    signature, archive = data[len(_SIGNED) :][:32], data[len(_SIGNED) + 32 :]
    if not hmac.compare_digest(signature, _signature(key, archive)):
        raise _damaged("it was changed, or was signed by another key")
    return archive


# -- Arrays ---------------------------------------------------------------------------------------


def _members(archive: bytes, max_bytes: int) -> dict[str, NDArray[Any]]:
    """The arrays by their names."""
    if not archive.startswith(b"PK\x03\x04"):
        raise _damaged("it does not begin as a zip archive")
    parts: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            entries = file.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
                raise _damaged("a member is compressed or encrypted")
            size = sum(entry.file_size for entry in entries)
            if size > max_bytes:
                raise _damaged(f"its arrays have {size} bytes, more than max_bytes={max_bytes}")
            if size > len(archive) or any(entry.file_size != entry.compress_size for entry in entries):
                raise _damaged(f"its arrays claim {size} bytes, the file has {len(archive)}")
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if not _NAME.fullmatch(entry.filename) or name in parts:
                    raise _damaged("a member has another name than header or group.layer.part, or an earlier one's")
                parts[name] = _array(file.read(entry))
    except (zipfile.BadZipFile, struct.error, EOFError, OSError, LookupError, ArithmeticError, RuntimeError) as error:
        raise _damaged(type(error).__name__) from None
    except ValueError as error:
        raise (error if str(error).endswith("[SEC-3]") else _damaged(type(error).__name__)) from None
    return parts


def _array(data: bytes) -> NDArray[Any]:
    """An array in numpy's format, which has as many bytes as its header says."""
    length = int.from_bytes(data[8:10], "little")
    found = _ARRAY.fullmatch(data[10 : 10 + length])
    if data[:8] != b"\x93NUMPY\x01\x00" or found is None:
        raise _damaged("a member is no array of unsigned integers in numpy's format, version 1.0")
    dtype = np.dtype(found[1].decode())
    shape = [int(size) for size in found[2].replace(b",", b" ").split()]
    body = data[10 + length :]
    if prod(shape) * dtype.itemsize != len(body) or prod(max(size, 1) for size in shape) >= 2**60:
        raise _damaged("an array has another number of bytes than it says")
    return np.frombuffer(body, dtype).reshape(shape)
