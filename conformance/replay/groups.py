"""The cache groups of a replay: from the words of the command line, and back into words."""

from collections.abc import Callable, Sequence

import numpy as np

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from ..console.exit_status import CannotRunError

__all__ = ["GroupsError", "holds_states", "keeps_all_pages", "named", "read_groups"]


Kind = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MLAAttentionSpec | MambaSpec

_MOST = 2**31 - 1


class GroupsError(CannotRunError):
    """The words name no cache groups; the message is one line."""


# -- From words -----------------------------------------------------------------------------------
# Nothing is stored in a replay: the layers are as small as they can be.


def read_groups(text: str, page_size: int) -> tuple[CacheGroupSpec, ...]:
    """Reads the cache groups that a comma-separated list of ``kind[:page_size[:argument]]`` names.

    Args:
        text: such as ``full:16,window:16:4096,mamba:64:align``.
        page_size: tokens in a page of a group that names no number of its own.

    Raises:
        GroupsError: a kind is unknown, a number is none, or an argument is missing or one too many.
    """
    groups = []
    for place, words in enumerate(text.split(",")):
        try:
            spec = _read_group(words.strip(), page_size)
        except GroupsError as error:
            raise GroupsError(f"--groups, {words.strip()!r}: {error}") from error
        groups.append(CacheGroupSpec(spec, (f"layer {place}",)))
    return tuple(groups)


def _read_group(words: str, page_size: int) -> Kind:
    kind, *rest = words.split(":")
    read = _KINDS.get(kind)
    if read is None:
        raise GroupsError(f"the kind must be one of {', '.join(_KINDS)}")
    if len(rest) > 2:
        raise GroupsError("there is more than kind:page_size:argument")
    size = _number("the page size", rest[0]) if rest and rest[0] else page_size
    return read(size, rest[1] if len(rest) == 2 else None)


def _full(page_size: int, argument: str | None) -> FullAttentionSpec:
    _no_argument(argument)
    return FullAttentionSpec(page_size, 1, 1, np.float32)


def _mla(page_size: int, argument: str | None) -> MLAAttentionSpec:
    _no_argument(argument)
    return MLAAttentionSpec(page_size, 1, 1, np.float32)


def _window(page_size: int, argument: str | None) -> SlidingWindowSpec:
    if argument is None:
        raise GroupsError("the window is missing, as in window:16:4096")
    return SlidingWindowSpec(page_size, 1, 1, np.float32, _number("the window", argument))


def _chunk(page_size: int, argument: str | None) -> ChunkedLocalAttentionSpec:
    if argument is None:
        raise GroupsError("the chunk is missing, as in chunk:16:8192")
    return ChunkedLocalAttentionSpec(page_size, 1, 1, np.float32, _number("the chunk", argument))


def _mamba(page_size: int, argument: str | None) -> MambaSpec:
    match argument:
        case "align":
            return MambaSpec(page_size, ((1,),), (np.float32,), "align")
        case None | "none":
            return MambaSpec(page_size, ((1,),), (np.float32,), "none")
    raise GroupsError(f"the mode must be none or align, not {argument!r}")


_KINDS: dict[str, Callable[[int, str | None], Kind]] = {
    "full": _full,
    "window": _window,
    "chunk": _chunk,
    "mla": _mla,
    "mamba": _mamba,
}


def _no_argument(argument: str | None) -> None:
    if argument is not None:
        raise GroupsError(f"this kind has a page size and nothing behind it, not {argument!r}")


def _number(name: str, text: str) -> int:
    # longer ones lie beyond the bound, and Python refuses to read them
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and 1 <= int(text) <= _MOST):
        raise GroupsError(f"{name} must be a number in [1, {_MOST}], not {text!r}")
    return int(text)


# -- What a group is ------------------------------------------------------------------------------


def named(group: CacheGroupSpec) -> str:
    """A group in the words that name it, page size and argument included."""
    spec = group.kv_cache_spec
    match spec:
        case SlidingWindowSpec():
            return f"window:{spec.page_size}:{spec.sliding_window}"
        case ChunkedLocalAttentionSpec():
            return f"chunk:{spec.page_size}:{spec.attention_chunk_size}"
        case MambaSpec():
            return f"mamba:{spec.page_size}:{spec.mamba_cache_mode}"
        case MLAAttentionSpec():
            return f"mla:{spec.page_size}"
        case FullAttentionSpec():
            return f"full:{spec.page_size}"


def holds_states(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a group holds states, which no step can take back (MAN-13)."""
    return any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)


def keeps_all_pages(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a request keeps every page of every group until it leaves, one for each stretch of its tokens."""
    return all(isinstance(group.kv_cache_spec, FullAttentionSpec | MLAAttentionSpec) for group in groups)
