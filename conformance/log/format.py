"""The format of an operation log: JSON lines, read without pickle and without eval (SEC-3).

The first line is an object, every other one a list of entries (a recording writes one), each a list that begins with a
word::

    {"kvproof": "log", "version": 1, "tokens": "mapped" or "shown", "names": "mapped" or "shown"}

    ["make", k, class, {argument: value}]           object k is made: its constructor's arguments, groups as in a
                                                    snapshot (MAN-14), a ``hash_seed`` that was given to `record` as
                                                    hexadecimal digits; or {"of": j, "group": g} where it is a part of
                                                    object j: a manager's pool, the table of one group
    ["request", r, id, tokens, extra keys, n]       request r, when it is first seen; n: ``prompt_logprobs``, or null;
                                                    extra keys as in a snapshot
    ["tokens", [r], [start], [count], tokens]       tokens of requests, each from one of theirs on
    ["keys", r, extra keys]                         a request's extra keys have changed
    ["call", k, method, {argument: value}, result]  a call on object k, or a property that was read, and the result
    ["call", k, method, {...}, null, error]         a call that raised: the kind of error, without its message
    ["slots", k, [r], computed, known, new, ahead, some]            a run of plain ``allocate_slots`` calls
    ["step", k, slots, computed, new, ahead, rows, options, result, [[r], known]]   an ``allocate_slots_batch``
    ["state", k, {field: value}]                    what object k showed then
    ["end", n]                                      the log was closed, after n operations

Tokens are a text, four digits of base 64 for each, the most significant first; or, where one is negative or not below
2^18, ``{"i32": text}``, int32s, little-endian, in base 64. Such a text of int32s may stand for any column, and for the
pages of one group: lists of eight numbers and more are written so. Every ``call``, every call of ``slots`` and every
``step`` is one operation; they are numbered from 1 on. Objects and requests are numbered from 0 on. In a call a request
stands as ``{"r": r, "computed": num_computed_tokens, "known": num_tokens, "running": whether its status is RUNNING}``,
pages by their ids, a table as ``{"k": k}``, a list of n keys of a request's first pages as ``{"keys": n}``, one key as
``{"key": [place, page size]}`` beside the request as ``origin``, and what has no form in a log as ``{"type": name}``.
A field of a state that is long is given by its CRC-32: ``{"crc32": c}``.

In ``slots`` and ``step`` a column is a list or one number for all. ``known`` may be ``{"more": d}``: computed tokens
+ d. ``some`` is ``[[place, pages by group]]`` of the calls that gave pages, or null; all others gave none. A column of
a ``step`` may be ``{"more": d, "but": [[place], [value]]}``: what it was in the step before on this object, plus d. The
result is ``[[place of a request that got nothing], [[[place], number of pages, [page]]]]``, an entry for each group;
behind it stand the requests that may publish a page, and how many tokens they have. Options are ``delay`` and
``tables``.

Tokens are the engine's secret. Unless ``show_tokens`` was asked for they are mapped one to one, those below 2^18 by a
permutation that is drawn at random for the log and kept nowhere, all others by a key: prefixes agree where they agreed,
so that the log replays alike. With ``redact``
request ids, adapters, versions, digests and layer names are mapped, too. No salt is in a log, and its fingerprint is
mapped. No key of a page is: events name keys by numbers, in the order in which they come up.
"""

from typing import Any

from ..calls.manager import MANAGER
from ..calls.method import Method
from ..calls.pool import POOL
from ..calls.table import TABLE, TABLES
from ..console.exit_status import CannotRunError

__all__ = ["CALLS", "CLASSES", "HEADER", "PROPERTIES", "SEEDED", "VERSION", "LogError", "row_of"]

VERSION = 1
HEADER: dict[str, Any] = {"kvproof": "log", "version": VERSION}
"""How the first line begins."""


class LogError(CannotRunError):
    """A log cannot be written, read or replayed; the message is one line that says where and why."""


def _of_form(form: str) -> dict[str, dict[str, Method]]:
    return {
        table.owner: {row.name: row for row in table if row.form == form and row.logged}
        for table in (MANAGER, POOL, TABLE, TABLES)
    }


CALLS = _of_form("call")
"""The recorded methods of each class."""

PROPERTIES = _of_form("get")
"""The recorded properties of each class."""

CLASSES = {name: (tuple(built[name].arguments), built[name].by_name) for name, built in _of_form("build").items()}
"""For each class the arguments of its constructor that it must be given, and those that it may be given."""

SEEDED = ("CacheManager", "PagePool")
"""The classes whose keys have a seed. A log has it only where it is given to `record`, as hexadecimal digits: eviction
policies other than ``lru`` go by it and by the tokens themselves (EVICT-1).
"""


def row_of(name: str, method: str) -> Method:
    """The row of a method or a property of a class."""
    return CALLS[name].get(method) or PROPERTIES[name][method]
