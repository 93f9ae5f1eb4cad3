"""The tables of a cache, of a layer's view of it, of the functions on arrays, and of a scheduler.

Their machines draw whole batches of arrays and judge them by tolerances: a row here says what there is and which clause
it is about, and its values are not drawn by kinds yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from .array_arguments import ATTENDED, LATENT, OPTIONS, WRITTEN, viewed
from .datum import Ref
from .kinds import NEGATIVE, NONE, PLAIN, number, wrong
from .method import Given, Kind, Method, Table
from .source import Source
from .values import BAD_TIMES, NO_INTS

__all__ = ["ATTENTION", "CACHE", "DTYPES", "HEAD_SIZES", "SCHEDULER", "SIZES", "VIEW", "Memory"]

_ARRAY, _DOCUMENT = Kind("array"), Kind("document")

_NO_SIZES = (0, *NEGATIVE)
HEAD_SIZES = (64, 128, 96, 32, 80, 1, 256)
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")


def _among(values: Sequence[Any], faults: Sequence[Any]) -> Kind:
    """One of some values, or one of some that are wrong."""
    return Kind(good=lambda source, _: source.one_of(values), fault=lambda source, *_: source.one_of(faults))


def _row(name: str, arguments: str, clause: str, result: Kind = _ARRAY, **more: Any) -> Method:
    """A method; a trailing ``*`` parts the arguments by position from those by name."""
    by_place, _, by_name = arguments.partition("*")
    return Method(
        name,
        dict.fromkeys(by_place.split(), PLAIN),
        result,
        clause,
        by_name=tuple(by_name.split()),
        logged=False,
        **more,
    )


_DOCUMENTS = dict.fromkeys(
    ("to_dict", "from_dict", "to_json", "from_json", "replace"),
    "documents and copies of a dataclass; held by the sizing and document machines",
)
_VIEW = "metadata layer_index kv_pages partition_manager mesh"


def _attends(name: str, arrays: Mapping[str, Kind], clause: str, options: str = "", **given: Any) -> Method:
    """A function that attends.

    Args:
        name: its name.
        arrays: the arrays that it is given.
        clause: the clause of a wrong result.
        options: the options that it has; all if there are none.
        given: what must be given beside the arrays.
    """
    kinds = {option: OPTIONS[option] for option in options.split() or OPTIONS if option not in given}
    own = {option: OPTIONS[option] for option in given}
    return Method(
        *(name, {**arrays, **own}, _ARRAY, clause),
        by_name=(*own, *kinds),
        options=kinds,
        draw=lambda *_: {**{array: Ref(array) for array in arrays}, **given},
        reads=True,
        spoils=1,
        logged=False,
    )


_EVENTS = wrong(None, 1, [1], ["event"])


def _writes(name: str, arguments: Mapping[str, Kind], clause: str, **options: Kind) -> Method:
    """A function that writes events, or reads what was written."""
    return Method(
        *(name, arguments, _DOCUMENT, clause),
        by_name=tuple(options),
        options=options,
        draw=lambda *_: {"events": []} if "events" in arguments else {},
        reads=True,
        capability="events",
        spoils=1,
        logged=False,
    )


CACHE = Table(
    "cache",
    "RaggedPagesCache",
    (
        _row("RaggedPagesCache", "views", "CACHE-1", NONE, form="build"),
        viewed("init_cache", "CACHE-1"),
        viewed("copy_pages", "CACHE-3"),
        viewed("export_pages", "SWAP-2"),
        viewed("import_pages", "SWAP-2"),
    ),
    _DOCUMENTS | {"init_empty": "the seeds' name for what is refused", "metadata": "how it was made"},
)

VIEW = Table(
    "view",
    "RaggedPagesCacheView",
    (
        _row("RaggedPagesCacheView", _VIEW, "CACHE-1", NONE, form="build"),
        viewed("init", "CACHE-1"),
        viewed("concatenate_to_cache", "CACHE-2"),
        viewed("attend", "ATT-1"),
        viewed("update_and_attend", "ATT-5"),
        _row("flattened_kv_pages", "", "CACHE-2", Kind(plain=lambda pages, _: tuple(pages.shape)), weight=1),
    ),
    _DOCUMENTS | dict.fromkeys(("key_pages", "value_pages", "mesh"), "read with every state"),
)

ATTENTION = Table(
    "attention",
    "",
    (
        _attends("ragged_paged_attention", ATTENDED, "ATT-1"),
        _attends("fused_ragged_paged_attention", WRITTEN, "ATT-5"),
        _attends("mla_paged_attention", LATENT, "ATT-1", "causal window soft_cap kv_dtype validate", scale=0.25),
        _row("export_prefix", "manager request caches model", "SWAP-2", _DOCUMENT),
        _row("import_prefix", "manager request caches model exported", "SWAP-2"),
        Method(
            *("cdiv", {"a": number(0, 7, NO_INTS), "b": number(1, 3, (0, -1, *NO_INTS))}, PLAIN, "R1"),
            optional=True,
            weight=1,
            spoils=1,
            logged=False,
        ),
        _writes("events_to_json", {"events": _EVENTS}, "MAN-12"),
        _writes("events_from_json", {"json_str": wrong(None, 1, b"{}")}, "SEC-3"),
        _writes(
            "events_to_msgpack",
            {"events": _EVENTS, "kv_cache_groups": wrong(None, 1, ["group"])},
            "MAN-12",
            timestamp=wrong(*BAD_TIMES),
            rank=wrong(-1, *NO_INTS[:-1]),
            medium=wrong(1, None),
            publisher=wrong(*NEGATIVE),
        ),
        _writes("events_from_msgpack", {"message": wrong(None, 1, "a message")}, "SEC-3"),
    ),
    {
        "get_kv_cache_coordinator": "the seeds' name for a part of the manager",
        "sha256": "a hash function that is handed over",
    },
)


@dataclass(frozen=True)
class Memory:
    """A device as far as a budget is concerned: the memory that it reports.

    Attributes:
        size: all of its bytes.
        used: bytes in use.
    """

    size: int
    used: int

    def memory_stats(self) -> dict[str, int]:
        """The bytes, by the names that jax gives them."""
        return {"bytes_limit": self.size, "bytes_in_use": self.used}


_MARGIN = 2**28
"""The bytes that are left alone where no margin is given."""


def _memory(source: Source, _: Any) -> Given:
    """Devices, and how much of their memory is wanted: of bytes of which no tenth is a fraction of a byte."""
    options = {
        "util": source.one_of([0.5, 0.1, 0.9, 1.0, 1]),
        "mode": source.one_of(["free", "total"]),
        "safety_margin": source.one_of([_MARGIN, 0, source.integer(0, 10**7)]),
    }
    chosen = source.some(list(options), len(options))
    given: dict[str, Any] = {name: value for name, value in options.items() if name in chosen}
    margin = given.get("safety_margin", _MARGIN)
    devices = []
    for _device in range(source.integer(1, 3)):
        used = 10 * source.integer(0, 10**7) + -margin % 10
        free = source.likely([10 * source.integer(1, 10**9)], [0])
        devices.append(Memory(used + margin + free, used))
    return given | {"devices": devices}


def _is_told_devices(known: Any) -> bool:
    """Whether the backend can be told which devices a budget is for; else it asks those that there are."""
    names, function = known.backend.names, "per_device_hbm_budget_bytes"
    return bool(names.offers(function) and names.accepts(function, "devices"))


_DTYPE = _among(DTYPES, ("f64", 1, None))


def _formula(name: str, **arguments: Kind) -> Method:
    """A function of numbers."""
    return Method(
        *(name, arguments, Kind(plain=lambda number, _: int(number)), "CACHE-1"),
        optional=True,
        weight=1,
        spoils=1,
        logged=False,
    )


SIZES = Table(
    "sizes",
    "",
    (
        Method(
            "size_pool",
            {
                "budget_bytes": number(0, 50_000),
                "group_page_bytes": Kind(
                    good=lambda source, _: source.several(range(1, 5001), 3, 1),
                    fault=lambda source, *_: source.one_of([[], [0], [-1], [1.0], None]),
                ),
            },
            Kind(plain=lambda size, _: (size.num_pages, size.page_bytes, size.unused_bytes, tuple(size.group_waste))),
            "CACHE-1",
            optional=True,
            weight=2,
            spoils=1,
            logged=False,
        ),
        replace(
            _formula(
                "per_device_hbm_budget_bytes",
                util=wrong(0.0, -0.5, 1.5, nan, "0.5", True, None),
                mode=wrong("all", 1, None),
                safety_margin=wrong(*NEGATIVE),
                devices=wrong(None, 1),
            ),
            when=_is_told_devices,
            draw=_memory,
        ),
        _formula("align_to_multiple", value=number(0, 300, NO_INTS), multiple=_among((128, 1, 2), _NO_SIZES)),
        _formula("previous_power_of_2", n=number(0, 300)),
        _formula("get_dtype_packing", dtype=_DTYPE),
        _formula(
            "get_num_slices_per_kv_cache_update_page",
            page_size_bytes=_among((1, 2**20, 2**18 + 1, 2**30), _NO_SIZES),
        ),
        _formula(
            "get_page_size_bytes",
            page_size=_among((16, 1), _NO_SIZES),
            num_kv_heads=number(1, 9, _NO_SIZES),
            head_size=_among(HEAD_SIZES, _NO_SIZES),
            kv_cache_dtype=_DTYPE,
        ),
    ),
)
"""How many bytes a cache takes, and how many pages a budget holds."""

SCHEDULER = Table(
    "engine",
    "Scheduler",
    (
        _row("Scheduler", "*", "ENG-1", NONE, form="build"),
        _row("add", "served", "ENG-1", NONE),
        _row("require_room", "served", "ENG-2", NONE),
        _row("remove", "served", "ENG-1", NONE),
        _row("schedule", "", "ENG-2"),
        _row("note_computed", "plan", "ENG-1", NONE),
        _row("victim", "served", "ENG-2"),
    ),
)
