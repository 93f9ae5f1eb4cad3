"""The tables of a page table of one group, and of several groups.

What is known when a call is drawn is a machine's (`kvproof.conformance.machines.table`): how many rows there are,
and how many pages each names in each group. A row of several groups is given a page list for each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .datum import Spelled
from .kinds import ARRAY, NONE, columns, number, numbers_of, spelled
from .method import Given, Kind, Method, Table
from .source import Source
from .spelling import NUMBERS, WIDE, Spelling
from .values import NO_INTS, NO_LISTS

__all__ = ["TABLE", "TABLES"]

_PAGE_IDS = (1, 2, 3, 2**30, 0, 2**31 - 1)
"""Page ids that are drawn: an int32 holds none above the last; of two slots a page, 2^30 begins at slot 2^31."""

_NO_PAGE_IDS: tuple[Any, ...] = (-1, 2**31, *NO_INTS)

_NO_PAGE_LISTS: tuple[Any, ...] = (*NO_LISTS, np.array([1.0]), np.array([[1]]), np.array([True]))

_TOO_FEW = (0, -1, *NO_INTS)
"""Values that are not a number of at least 1."""


def _without_one(*names: str) -> Callable[[Given], Iterator[Given]]:
    """Simpler arguments, where several lists have an entry for the same thing: both without it."""

    def less(given: Given) -> Iterator[Given]:
        lists = [given[name] for name in names]
        if not all(isinstance(values, Spelled) for values in lists):
            return
        for place in range(min(len(values.values) for values in lists)):
            yield {
                name: replace(values, values=values.values[:place] + values.values[place + 1 :])
                for name, values in zip(names, lists, strict=True)
            }

    return less


# -- Rows, by their numbers --------------------------------------------------------------------------------------------


def _row(source: Source, known: Any) -> Any:
    return source.whole(0, known.num_rows - 1)


def _no_row(source: Source, known: Any) -> Any:
    return source.likely([known.num_rows, -1], NO_INTS)


_ROW = Kind(good=_row, fault=lambda source, known, _: _no_row(source, known))
_NUM_ROWS = Kind(
    good=lambda source, known: source.integer(0, known.num_rows),
    fault=lambda source, known, _: source.likely([known.num_rows + 1, -1], NO_INTS),
)

# -- Pages of a row ----------------------------------------------------------------------------------------------------


def _ids(source: Source, most: int) -> list[int]:
    """Page ids for a number of entries."""
    return source.several(_PAGE_IDS, max(min(most, 3), 0))


def _in_last_group(known: Any, pages: Any) -> Any:
    """A page list for the last group, the others' being empty; of a table of one group the list itself."""
    return [*([] for _ in known.widths[1:]), pages] if known.several else pages


def _handed_over(source: Source, known: Any, lists: Sequence[Any], how: Spelling) -> Any:
    """The page lists of a row, in the type of a list of numbers; of a table of one group the only one."""
    given = [Spelled(how, tuple(pages)) for pages in lists]
    return spelled(source, known, given) if known.several else given[0]


def _fitting(source: Source, known: Any, rooms: Sequence[int]) -> Any:
    """Page lists for a row that has so much room in each group."""
    how = source.spelling(NUMBERS, known.takes_iterables)
    return _handed_over(source, known, [_ids(source, room) for room in rooms], how)


def _appended(source: Source, known: Any) -> Given:
    row = _row(source, known)
    return {"page_ids": _fitting(source, known, known.rooms(row)), "row_idx": row}


def _replaced(source: Source, known: Any) -> Given:
    return {"page_ids": _fitting(source, known, known.widths), "row_idx": _row(source, known)}


def _wrong_pages(source: Source, known: Any, room: int) -> Any:
    """More pages than the last group has room for, no page behind pages, no list, or lists for other groups."""
    if known.several and source.integer(0, 2) == 2:
        return source.one_of([[[]] * (len(known.widths) - 1), [[]] * (len(known.widths) + 1), None])
    often = [[1] * (room + source.integer(1, 2)), [*[1] * (room - 1), -1]]
    good = _ids(source, room - 1)
    seldom = [*([*good, wrong] for wrong in _NO_PAGE_IDS), *_NO_PAGE_LISTS]
    wrong = source.likely(often, seldom) if room else often[0]  # in a full row nothing else is the only fault
    if type(wrong) is list and all(type(page) is int for page in wrong):
        wrong = spelled(source, known, wrong, WIDE)
    return _in_last_group(known, wrong)


_APPENDED = Kind(fault=lambda source, known, given: _wrong_pages(source, known, known.rooms(given["row_idx"])[-1]))
_REPLACED = Kind(fault=lambda source, known, _: _wrong_pages(source, known, known.widths[-1]))
_OF_PAGES = Kind(
    fault=lambda source, known, _: {"page_ids": _in_last_group(known, []), "row_idx": _no_row(source, known)}
)

# -- Pages of several rows ---------------------------------------------------------------------------------------------


def _even(known: Any, lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Page lists as an array has them: `[m, k]`, or `[m, groups, k]`."""
    return [list(groups) if known.several else groups[0] for groups in lists]


def _batch(pages: str) -> dict[str, Any]:
    """How a batch is drawn and spoilt.

    Args:
        pages: the name of the argument that has the page lists.
    """

    def draw(source: Source, known: Any) -> Given:
        """Rows, some of them named twice, and page lists that fit them one after another."""
        rows = source.several(range(known.num_rows), 4)
        left, lists = [known.rooms(row) for row in range(known.num_rows)], []
        for row in rows:
            lists.append([_ids(source, room) for room in left[row]])
            left[row] = [room - len(ids) for room, ids in zip(left[row], lists[-1], strict=True)]
        how = source.spelling(NUMBERS, known.takes_iterables)
        given: Any
        if len({len(ids) for groups in lists for ids in groups}) == 1 and source.one_of([False, True]):
            given = Spelled(how, tuple(_even(known, lists)))
        else:
            given = spelled(source, known, [_handed_over(source, known, groups, how) for groups in lists])
        return {pages: given, "req_indices": spelled(source, known, rows, NUMBERS)}

    def wrong_lists(source: Source, known: Any, _: Given) -> Given:
        """The last list doesn't fit, alone or behind what the row is given before, or is none; no lists."""
        row, other = _row(source, known), _row(source, known)
        room = known.rooms(row)[-1]
        good = _ids(source, min(room, known.rooms(other)[-1]) // 2)
        left = room - (len(good) if row == other else 0)
        lists, rows = source.one_of(
            [
                ([[1] * room, [1]], [row, row]),
                ([good, [1] * (left + 1)], [other, row]),
                ([good, [-1] if left else [1]], [other, row]),
                ([good], [other, row]),
                (1, [other]),
                (None, [other]),
            ]
        )
        if known.several and source.rarely():
            lists = [[[]] * (len(known.widths) + 1)] * len(rows)
        elif type(lists) is list:
            lists = [_in_last_group(known, ids) for ids in lists]
        return {pages: lists, "req_indices": rows}

    def wrong_rows(source: Source, known: Any, _: Given) -> Given:
        """A row that there is not, behind one that there is; more or fewer rows than lists; no list."""
        other = _row(source, known)
        good = _in_last_group(known, _ids(source, known.rooms(other)[-1] // 2))
        empty = _in_last_group(known, [])
        rows = source.one_of([[other, _no_row(source, known)], [other], None, 1, *columns(known, [other, other])])
        return {pages: [good, empty], "req_indices": rows}

    kinds = {pages: Kind(fault=wrong_lists), "req_indices": Kind(fault=wrong_rows)}
    return {"arguments": kinds, "draw": draw, "less": _without_one(*kinds)}


# -- Where tokens go ---------------------------------------------------------------------------------------------------


def _mapped(source: Source, known: Any) -> Given:
    """Tokens of rows that have pages, in any order."""
    size, counts = source.integer(1, 3), known.counts[0]
    rows = source.several([row for row in range(known.num_rows) if counts[row]], min(known.max_tokens, 5))
    places = [source.integer(0, counts[row] * size - 1) for row in rows]
    how = source.spelling(NUMBERS, known.takes_iterables)
    return {"req_indices": Spelled(how, tuple(rows)), "positions": Spelled(how, tuple(places)), "page_size": size}


def _mapped_badly(source: Source, known: Any, _: Given) -> Given:
    """Tokens past a row's pages, too many tokens, rows that there are not, no list."""
    row, most = _row(source, known), known.max_tokens + 1
    end = known.counts[0][row]
    often = [([row], [end])] + ([([row] * most, [0] * most)] if end else [])
    seldom = [([row], [end]), ([_no_row(source, known)], [0]), (None, [])]
    rows, places = source.likely(often, [*seldom, *((rows, [0]) for rows in columns(known, [row]))])
    return {"req_indices": rows, "positions": places, "page_size": 1}


def _placed_badly(source: Source, known: Any, _: Given) -> Given:
    row = _row(source, known)
    wrong = source.one_of([-1, *NO_INTS])
    listed = [([row], places) for places in ([wrong], [wrong], [], *columns(known, [0]))]
    rows, places = source.one_of([*listed, ([], 1)])
    return {"req_indices": rows, "positions": places, "page_size": 1}


_MAPPED = {
    "req_indices": Kind(fault=_mapped_badly),
    "positions": Kind(fault=_placed_badly),
    "page_size": number(faults=_TOO_FEW),
}


def _sliced(source: Source, known: Any) -> Given:
    """Each row at most once, any of its tokens."""
    size, left = source.integer(1, 3), known.max_tokens
    rows, starts, lengths = source.some(range(known.num_rows), 3), [], []
    for row in rows:
        end = known.counts[0][row] * size
        starts.append(source.integer(0, end))
        lengths.append(source.integer(0, min(end - starts[-1], left)))
        left -= lengths[-1]
    how = source.spelling(NUMBERS, known.takes_iterables)
    given = {"req_indices": rows, "starts": starts, "lengths": lengths}
    return {name: Spelled(how, tuple(values)) for name, values in given.items()} | {"page_size": size}


def _runs(rows: Any, starts: Any, lengths: Any) -> Given:
    return {"req_indices": rows, "starts": starts, "lengths": lengths, "page_size": 1}


def _sliced_badly(source: Source, known: Any, _: Given) -> Given:
    """A row that is named twice, one that there is not, an array of rows, and more tokens than a step has."""
    row, most = _row(source, known), known.max_tokens + 1
    wrong = [[_no_row(source, known)], *columns(known, [row])]
    often = [_runs([row, row], [0, 0], [0, 0]), *(_runs(rows, [0], [0]) for rows in wrong)]
    too_many = [_runs([row], [0], [most])] if known.counts[0][row] >= most else []
    return source.one_of([*often, *too_many])


def _begun_badly(source: Source, known: Any, _: Given) -> Given:
    row, wrong = _row(source, known), source.one_of([-1, *NO_INTS])
    past_the_pages = _runs([row], [known.counts[0][row]], [1])
    listed = [_runs([row], starts, [0]) for starts in ([wrong], *columns(known, [0]))]
    return source.likely([past_the_pages], [*listed, _runs([], None, [])])


def _ended_badly(source: Source, known: Any, _: Given) -> Given:
    row, wrong = _row(source, known), source.one_of([-1, *NO_INTS])
    return source.one_of([_runs([row], [0], lengths) for lengths in ([wrong], [], *columns(known, [0]))])


_SLICED = {
    "req_indices": Kind(fault=_sliced_badly),
    "starts": Kind(fault=_begun_badly),
    "lengths": Kind(fault=_ended_badly),
    "page_size": number(faults=_TOO_FEW),
}

# -- The tables --------------------------------------------------------------------------------------------------------

_ROWS = ("host rows", "pages in a row")
_SHOWN = "made or read with every state"
_STEP = "what several tables share in one batched step; no engine calls it"
_TWO_ROWS = {"src": _ROW, "tgt": _ROW}


def _changes(name: str, arguments: Mapping[str, Kind], clause: str, **more: Any) -> Method:
    more = {"refuses": ("TAB-2",), "weight": 1, "spoils": int(bool(arguments)), **more}
    return Method(name, arguments, NONE, clause, dict.fromkeys(_ROWS, clause), **more)


def _reads(name: str, arguments: Mapping[str, Kind], clause: str, **more: Any) -> Method:
    return Method(name, arguments, ARRAY, clause, reads=True, **{"weight": 1, **more})


def _maps(name: str, arguments: Mapping[str, Kind], **more: Any) -> Method:
    return _reads(name, arguments, "TAB-7", refuses=("TAB-2",), optional=True, spoils=2, **more)


def _built(name: str, given: Given, *, by_group: Sequence[Any] = ()) -> Method:
    """A constructor: every argument is wrong in turn.

    Args:
        name: the class.
        given: good arguments.
        by_group: what is wrong with a last argument that has an entry for each group.
    """
    kinds = {argument: number(faults=_TOO_FEW) for argument in given}
    if by_group:
        kinds[list(given)[-1]] = Kind(fault=lambda source, *_: source.one_of(by_group))
    return Method(name, kinds, NONE, "R1", form="build", draw=lambda *_: given, spoils=1)


_BOTH = (
    _changes("append_row", {"page_ids": _APPENDED, "row_idx": _OF_PAGES}, "TAB-2", draw=_appended, weight=2, spoils=3),
    _changes("add_row", {"page_ids": _REPLACED, "row_idx": _OF_PAGES}, "TAB-2", draw=_replaced, weight=2, spoils=2),
    _changes("clear_row", {"row_idx": _ROW}, "TAB-1", optional=True),
    _changes("move_row", _TWO_ROWS, "TAB-3"),
    _changes("swap_row", _TWO_ROWS, "TAB-3"),
    _changes("clear", {}, "TAB-6"),
    Method("commit", {"num_reqs": _NUM_ROWS}, NONE, "TAB-4", refuses=("TAB-2",), weight=2, spoils=2),
)


def _appends(pages: str) -> Method:
    return _changes("append_rows_batch", **_batch(pages), clause="TAB-2", optional=True, weight=2, spoils=3)


TABLE = Table(
    "table",
    "PageTable",
    (
        _built("PageTable", {"max_num_reqs": 2, "max_num_pages_per_req": 2, "max_num_batched_tokens": 2}),
        *_BOTH,
        _appends("page_ids"),
        _maps("slot_mapping", _MAPPED, draw=_mapped, less=_without_one("req_indices", "positions")),
        _maps("update_slices", _SLICED, draw=_sliced, less=_without_one("req_indices", "starts", "lengths")),
        _reads("get_device_tensor", {}, "TAB-4", weight=2, logged=False),
    ),
    dict.fromkeys(("get_cpu_tensor", "num_pages_per_row", "page_table", "page_table_cpu", "check"), _SHOWN)
    | dict.fromkeys(("read_row", "read_batch"), _STEP),
)

_GROUP = Kind(
    good=lambda source, known: source.whole(0, len(known.widths) - 1),
    fault=lambda source, known, _: source.one_of([-1, len(known.widths), *NO_INTS]),
)

TABLES = Table(
    "tables",
    "MultiGroupPageTable",
    (
        _built(
            "MultiGroupPageTable",
            {"max_num_reqs": 1, "max_model_len": 1, "max_num_batched_tokens": 1, "page_sizes": [1]},
            by_group=([], [0], 1),
        ),
        *_BOTH,
        _appends("page_ids_per_req"),
        Method(
            "__getitem__",
            {"group": _GROUP},
            Kind(plain=lambda table, _: numbers_of(table.get_cpu_tensor())),
            "TAB-1",
            reads=True,
            optional=True,
            spoils=1,
            logged=False,
        ),
    ),
    {"check": _SHOWN, "require_groups": "what a manager and a step ask of the tables they are handed"},
)
