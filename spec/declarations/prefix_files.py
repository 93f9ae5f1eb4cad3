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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np

from .json_kinds import group_to_json
from .reading import integer, listed, refusal

__all__ = ["ExportedPrefix", "in_common", "require_in_common"]

_HEADER, _VERSION = "exported prefix", 1
_FIELDS = ("kvproof", "version", "model", "root", "groups", "caches", "num_tokens", "keys")

_SIGNED, _DIGEST_BYTES, _LEAST_KEY = b"kvproof signed 1\n", 32, 16

_PART_NAME = re.compile(r"(?:header|\d{1,9}\.\d{1,9}\.\d{1,9})\.npy", re.ASCII)
_NPY = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    rb"{'descr': '(\|u1|<u[248])', 'fortran_order': False, 'shape': \(((?:\d{1,18}, ?){0,7}\d{0,18})\), } *\n"
)
_BEYOND = 1 << 60
"""What an array's number of entries is below."""

_LAYOUT = (
    *("num_hidden_layers", "num_kv_heads", "k_headdim", "v_headdim", "page_size", "version", "_kvdtype_str"),
    *("slot_scales", "num_head_shards"),
)
"""The fields of a cache's description that say how its pages are laid out."""


@dataclass(frozen=True, eq=False)
class ExportedPrefix:
    """The pages of a prefix, group by group in the order of their places, without token ids and salts (SEC-2).

    Attributes:
        header: header of the file.
        arrays: the pages as unsigned integers of their size, by ``group.layer.part``.
    """

    header: dict[str, Any]
    arrays: dict[str, Any]

    @classmethod
    def of(cls, common: Mapping[str, Any], num_tokens: int, keys: list[list[str]], arrays: dict[str, Any]) -> Self:
        """A prefix as it is exported.

        Args:
            common: what `in_common` gives.
            num_tokens: the number of tokens of the prefix.
            keys: the digests of its pages, for each group.
            arrays: its pages.
        """
        header = {"kvproof": _HEADER, "version": _VERSION, **common, "num_tokens": num_tokens, "keys": keys}
        return cls(header, arrays)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the prefix."""
        return int(self.header["num_tokens"])

    def to_bytes(self, key: bytes | None = None) -> bytes:
        """The file: a zip archive of arrays in numpy's format, one of which is the header as JSON. O(pages).

        Args:
            key: the secret that signs the file (HMAC-SHA256), so that a reader with the same key refuses a changed
                file; at least 16 bytes, better 32, random. None: the file is not signed, and anyone who can write to
                it can put other pages under these keys.

        Raises:
            TypeError: ``key`` is not bytes.
            ValueError: ``key`` is shorter than 16 bytes (R1).
        """
        return _prefix_file(self.header, self.arrays, key)

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = 2**32, key: bytes | None = None) -> Self:
        """Reads what `to_bytes` wrote; `import_prefix` holds it against a manager and its caches.

        Memory and time are proportional to the size of the file, even if its header claims more.

        Args:
            data: the file.
            max_bytes: the most bytes that the arrays of the file may have.
            key: the key that the file was signed with; None: the file must not be signed.

        Raises:
            TypeError: ``data`` or ``key`` is not bytes.
            ValueError: the file is of another kind or version, damaged, too large, or not signed with ``key`` (SEC-3);
                the key is too short (R1).
        """
        if not isinstance(data, bytes):
            raise refusal(TypeError, "R1", f"data must be bytes, not {type(data).__name__}")
        return cls(*_prefix_of_file(data, integer("max_bytes", max_bytes), key))


# -- The header -----------------------------------------------------------------------------------


def in_common(manager: Any, caches: Any, model: object, kinds: tuple[type[Any], type[Any]]) -> dict[str, Any]:
    """The part of the header that must be equal in the exporting and the importing cache (R1).

    Args:
        manager: the manager of the cache.
        caches: the pages of each group.
        model: a fingerprint of the model.
        kinds: the package's classes of a model's cache and of a layer's states.

    Raises:
        TypeError: ``model`` is no str, or something else than pages is among the caches.
        ValueError: not a cache for each group, or a cache of several page shards.
    """
    if not isinstance(model, str):
        raise refusal(TypeError, "R1", f"model={model!r} must be a str")
    own = listed("caches", caches)
    if len(own) != manager.num_kv_cache_groups:
        raise refusal(ValueError, "R1", f"caches has {len(own)} of {manager.num_kv_cache_groups} groups")
    groups = [group_to_json(group) | {"layer_names": None} for group in manager.kv_cache_groups]
    return {
        "model": model,
        "root": manager.page_pool.none_hash.hex(),
        "groups": json.loads(json.dumps(groups)),
        "caches": [_layout(cache, *kinds) for cache in own],
    }


def _layout(cache: Any, layered: type[Any], states: type[Any]) -> Any:
    """How the pages of a group are laid out, as JSON."""
    if isinstance(cache, layered):
        metadata = cache.metadata
        if metadata is None or metadata.num_page_shards > 1:
            raise refusal(ValueError, "SWAP-2", "caches: one without layers, or of several page shards")
        return {name: getattr(metadata, name) for name in _LAYOUT}
    layers = listed("caches", cache)
    if not layers or not all(isinstance(own, states) and own.num_page_shards == 1 for own in layers):
        raise refusal(TypeError, "R1", "caches must hold a RaggedPagesCache or StatePages of one page shard")
    return [
        [[dtype.name, list(pages.shape[1:])] for dtype, pages in zip(own.dtypes, own.pages, strict=True)]
        for own in layers
    ]


def require_in_common(exported: ExportedPrefix, common: Mapping[str, Any]) -> None:
    """Refuses a prefix of another model, hash seed, page size, layout or dtype (SWAP-2)."""
    for name, own in common.items():
        if json.dumps(exported.header[name], sort_keys=True) != json.dumps(own, sort_keys=True):
            raise refusal(ValueError, "SWAP-2", f"exported: its {name} is another one than here")


# -- The file -------------------------------------------------------------------------------------


def _prefix_file(header: Mapping[str, Any], arrays: Mapping[str, Any], key: bytes | None) -> bytes:
    """The file of a header and its arrays. O(their size).

    Raises:
        TypeError: ``key`` is neither bytes nor None.
        ValueError: it is too short (R1).
    """
    signing = _signing(key)
    archive = _archive(header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    if signing is None:
        return archive
    signing.update(archive)
    return b"".join((_SIGNED, signing.digest(), archive))


def _prefix_of_file(data: bytes, max_bytes: int, key: bytes | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a header and arrays. O(size).

    Args:
        data: the file.
        max_bytes: the most bytes that its arrays may have.
        key: the key of its signature; None: it must have none.

    Raises:
        TypeError: ``key`` is neither bytes nor None.
        ValueError: ``key`` is too short (R1), or the file is not signed by it, damaged or too large (SEC-3).
    """
    arrays = {name.removesuffix(".npy"): _array(held) for name, held in _members(_verified(data, key), max_bytes)}
    try:
        header = json.loads(arrays.pop("header").tobytes().decode())
    except (KeyError, ValueError, RecursionError):
        raise _damaged("has no header that is JSON") from None
    if not isinstance(header, dict) or set(header) != set(_FIELDS):
        raise _damaged(f"must have a header with the fields {list(_FIELDS)}")
    if header["kvproof"] != _HEADER or type(header["version"]) is not int or header["version"] != _VERSION:
        raise _damaged(f"must be of the kind {_HEADER!r}, version {_VERSION}")
    if type(header["num_tokens"]) is not int or header["num_tokens"] <= 0:
        raise _damaged("must have num_tokens of at least 1 in its header")
    return header, arrays


def _damaged(problem: str) -> Exception:
    return refusal(ValueError, "SEC-3", f"data {problem}")


# -- Signatures -----------------------------------------------------------------------------------


def _signing(key: object) -> hmac.HMAC | None:
    """What signs by a key, the mark of signed files taken in; None without a key. No message shows a key (SEC-2)."""
    if key is None:
        return None
    if not isinstance(key, bytes):
        raise refusal(TypeError, "R1", f"key={type(key).__name__} must be bytes")
    if len(key) < _LEAST_KEY:
        raise refusal(ValueError, "R1", f"key of {len(key)} bytes must have at least {_LEAST_KEY}")
    return hmac.new(key, _SIGNED, hashlib.sha256)


def _verified(data: bytes, key: bytes | None) -> bytes:
    """The archive in a file, after its signature was looked at."""
    signing, is_signed = _signing(key), data.startswith(_SIGNED)
    if signing is None:
        if is_signed:
            raise _damaged("is signed and needs its key")
        return data
    if not is_signed:
        raise _damaged("is not signed, though a key is given")
    start = len(_SIGNED) + _DIGEST_BYTES
    signing.update(memoryview(data)[start:])
    if not hmac.compare_digest(signing.digest(), data[len(_SIGNED) : start]):
        raise _damaged("was signed by another key, or changed since")
    return data[start:]


# -- The archive ----------------------------------------------------------------------------------


def _archive(**arrays: Any) -> bytes:
    """An archive of arrays, with equal bytes for equal arrays. O(their size).

    `numpy.savez` writes such archives too, but asks for the long form of each size, and patch versions of Python write
    that form differently. Here a size is written in the long form only where it needs that.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            stored = np.ascontiguousarray(array)
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, as no file shall depend on when it was written
            member.file_size = stored.nbytes  # what decides between the forms, before anything is written
            with archive.open(member, "w") as content:
                np.lib.format.write_array(content, stored, (1, 0), allow_pickle=False)
    return file.getvalue()


def _members(archive: bytes, max_bytes: int) -> list[tuple[str, bytes]]:
    """The members of an archive, by their names."""
    if not archive.startswith(b"PK\x03\x04"):
        raise _damaged("is no zip archive from its first byte on")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            entries = file.infolist()
            problem = _problem(entries, len(archive), max_bytes)
            members = [] if problem else [(entry.filename, file.read(entry)) for entry in entries]
    except (
        zipfile.BadZipFile,
        struct.error,
        ValueError,
        EOFError,
        OSError,
        LookupError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise _damaged(f"is a damaged zip archive: {type(error).__name__}") from None
    if problem:
        raise _damaged(problem)
    return members


def _problem(entries: Sequence[zipfile.ZipInfo], num_bytes: int, max_bytes: int) -> str:
    """Why members are not read; empty if they are."""
    size = sum(entry.file_size for entry in entries)
    if size > max_bytes:
        return f"has arrays of {size} bytes, max_bytes={max_bytes}"
    if size > num_bytes:
        return f"claims {size} bytes in a file of {num_bytes}"
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
            return "has a member that is not stored as it is"
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names) or not all(map(_PART_NAME.fullmatch, names)):
        return "must have members named header.npy and group.layer.part.npy, each once"
    return ""


def _array(content: bytes) -> Any:
    """An array in numpy's format 1.0, unsigned and in C order, that fills its member. It is a view of it."""
    start = 10 + int.from_bytes(content[8:10], "little")
    found = _NPY_HEADER.fullmatch(content[10:start])
    if content[:8] != _NPY or found is None:
        raise _damaged("has a member that is no array as kvproof writes them")
    sizes = found[2].decode().replace(",", " ").split()
    shape, dtype = [int(size) for size in sizes], np.dtype(found[1].decode())
    if prod(size or 1 for size in shape) >= _BEYOND:
        raise _damaged("has an array of a larger size than any cache")
    if prod(shape) * dtype.itemsize != len(content) - start:
        raise _damaged(f"has an array of {dtype}{shape} in {len(content) - start} bytes")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
