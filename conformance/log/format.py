"""The format of an operation log: JSON lines, read without pickle and without eval (SEC-3).

The first line is an object, every other one an array that begins with a word::

    {"kvproof": "log", "version": 1, "tokens": "mapped" or "shown", "names": "mapped" or "shown"}
    ["make", k, class, {argument: value}]              object k is made: its constructor's arguments, groups as in a
                                                       snapshot (MAN-14); "of": j and "group": g where it is a part
                                                       of object j: a manager's pool, the table of one group
    ["request", r, id, [token], extra keys, n]         request r, a new object, when it is first seen; n:
                                                       ``prompt_logprobs``, or null; extra keys as in a snapshot
    ["tokens", r, start, [token]]                      from ``start`` on its tokens are these
    ["keys", r, extra keys]                            its extra keys have changed
    ["call", k, method, [argument], result]            a call on object k and what it returned
    ["call", k, method, [argument], null, error]       a call that raised: the kind of error, no message
    ["slots", k, r, computed, known, new, ahead, some] a run of plain ``allocate_slots`` calls, in columns
    ["step", k, slots, computed, new, ahead, some]     an ``allocate_slots_batch``
    ["state", k, {field: value}]                       what object k showed then
    ["end", n]                                         the log was closed, after n operations

Every ``call``, every entry of ``slots`` and every ``step`` is one operation; they are numbered from 1 on. Objects are
numbered from 0 on, and so are requests; a request stands in a call as ``{"r": r, "computed": num_computed_tokens,
"known": num_tokens, "running": whether its status is RUNNING}``, pages by their ids, a table as ``{"k": k}``, and
what has no other form as ``{"type": name}``. A field of a state that is long is given by its CRC-32: ``{"crc32": c}``.

Columns. In ``slots`` every column is a list or one number for all; ``known`` may be ``{"more": d}``: ``num_tokens`` is
computed tokens + d. ``some`` is ``[[place, result]]`` of the calls that gave pages, or null; all others gave none. In
``step`` each of ``slots``, ``computed``, ``new`` and ``ahead`` is a list, a number for all, or ``{"more": d, "but":
{place: value}}``: what it was in the step before on this object, plus d; ``some`` is ``[[place, pages by group]]``, null
for those who got nothing because pages were lacking. A step with tables has a seventh and an eighth entry: the table's
number and the rows, a column like the others.

Tokens are the engine's secret. Unless ``show_tokens`` was asked for they are mapped one to one, by a key that is
drawn for the log and kept nowhere: prefixes agree where they agreed, so that the log replays alike. With ``redact``
request ids, adapters, versions, digests and layer names are mapped, too. A salt is never in a log, its fingerprint is
mapped, and so is no key of a page: pages are told apart by who was given them.
"""

from typing import Any

__all__ = ["HEADER", "VERSION", "LogError"]

VERSION = 1
HEADER: dict[str, Any] = {"kvproof": "log", "version": VERSION}
"""How the first line begins."""


class LogError(Exception):
    """A log cannot be written, read or replayed; the message is one line that says where and why."""
