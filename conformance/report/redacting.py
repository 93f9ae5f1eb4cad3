"""Deviations with their tokens made unreadable, equality kept (SEC-2)."""

import re
from collections.abc import Callable
from dataclasses import replace

from ..calls.deviation import Deviation
from .redaction import Redaction
from .verdicts import Report

__all__ = ["redacted"]

_NUMBER = r"-?\d+"
_NUMBERS = rf"{_NUMBER}(?:, {_NUMBER})*,?"
_INT32 = 1 << 31

_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""

_TOKENS = re.compile(
    rf"([Rr]equest\((?:{_QUOTED}|[^\[]*?), |grows by |of tokens |sampled token |token_ids=|\btokens="
    r"|token_ids\[\d+\] = )"
    rf"([\[(]?)({_NUMBERS})?([\])]?)"
)
"""Where a request's tokens stand in a call."""

_OF_KEYS = re.compile(r"hash_page_tokens|hash_request_tokens|req_to_page_hashes|take_events|follower\.apply")
"""Calls whose arguments and results hold tokens in any place."""

_KEY_FIELDS = frozenset({"keys", "events"})
"""Parts of the observable state that do."""

_LISTS = re.compile(rf"([\[(]|\.\.\. )({_NUMBERS})([\])]| \.\.\.)")
"""Lists of numbers, their ends cut off or not."""

_DIGESTS = re.compile(rf"b(?:{_QUOTED})")


def redacted(report: Report, redaction: Redaction) -> Report:
    """A report in which no token stands, and no digest of tokens.

    Args:
        report: the report.
        redaction: the map.
    """

    def line(text: str) -> str:
        lists = _OF_KEYS.search(text) is not None
        return _redact(text, redaction, lists)

    machines = [
        replace(machine, deviations=[_deviation(found, line, redaction) for found in machine.deviations], scripts=[])
        for machine in report.machines
    ]
    return replace(report, machines=machines)


def _deviation(found: Deviation, line: Callable[[str], str], redaction: Redaction) -> Deviation:
    keys = bool(found.calls) and _OF_KEYS.search(found.calls[-1]) is not None

    def value(text: str) -> str:
        named = any(text.startswith(f"{name} = ") for name in _KEY_FIELDS)
        return _redact(text, redaction, keys or named)

    def state(shown: dict[str, str]) -> dict[str, str]:
        return {name: _redact(text, redaction, name in _KEY_FIELDS) for name, text in shown.items()}

    made = Deviation(
        found.clause,
        value(found.expected),
        value(found.observed),
        tuple(map(line, found.calls)),
        state(found.before),
        state(found.after),
        observed_after=state(found.observed_after),
    )
    made.raised = found.raised
    return made


def _redact(text: str, redaction: Redaction, lists: bool) -> str:
    """A text without tokens.

    Args:
        text: the text.
        redaction: the map.
        lists: whether every list of numbers in it is one of tokens, as far as can be told.
    """

    def numbers(listed: str) -> str:
        return re.sub(_NUMBER, lambda match: str(_token(int(match[0]), redaction)), listed)

    if lists:  # those of requests are among them
        text = _LISTS.sub(lambda match: f"{match[1]}{numbers(match[2])}{match[3]}", text)
    else:
        text = _TOKENS.sub(lambda match: f"{match[1]}{match[2]}{numbers(match[3] or '')}{match[4]}", text)
    return _DIGESTS.sub(lambda match: f"<digest {redaction.text(match[0])}>", text)


def _token(token: int, redaction: Redaction) -> int:
    return redaction.token(token) if -_INT32 <= token < _INT32 else token
