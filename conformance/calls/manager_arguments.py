"""What cache managers are given: the kinds of their arguments, each with what is always wrong with it.

What is wrong only after certain calls, as a hit that is another request's, is a scenario of a machine. What is known
when a call is drawn is a machine's (`kvproof.conformance.machines.manager_faults`): which requests there are.
"""

from typing import Any

from kvproof.spec.declarations import EngineRequestStatus

from .datum import Prompt, Saying
from .kinds import FLAG, NEGATIVE, POOL_OPTIONS, columns, number, wrong, wrong_numbers
from .method import Given, Kind
from .pool import EXPIRY, PRIORITY
from .source import Source
from .values import NO_INTS

__all__ = [
    *("AS_MANY", "ASKING", "BUILT", "IDS", "LENGTH", "LIVE", "NEW_TOKENS", "OPTIONS", "PIN_ID", "PLACEMENT", "RANKING"),
    *("REQUEST", "RUNNING", "SHARD", "SHARDS", "SLOTS", "STEP", "SWAP_ID", "TOKENS", "WRITTEN"),
]

_STRANGER = Prompt((0,), request_id="z")
"""A request that is never live."""

_NO_LENGTHS = (-1, *NO_INTS[:-1])
"""Values that are no number of tokens where None means all of them."""

_NO_NUMBERS = (0, *NEGATIVE)


def _request(name: str, *also: Any) -> Kind:
    """A request.

    Args:
        name: what the machine has that draws a good one.
        also: requests that are wrong, beside objects that are none.
    """

    def spoil(source: Source, known: Any, _: Given) -> Any:
        nameless = [Saying(Prompt((0,), request_id="x"), (("request_id", 1),))] if known.is_exact else []
        return source.likely(also or [None, "a", *nameless], [None, "a", *nameless])

    return Kind("request", lambda source, known: getattr(known, name)(source), spoil)


REQUEST = _request("some_request")
ASKING = _request("asking_request")
LIVE = _request("live_request", _STRANGER)
RUNNING = _request("running_request", Saying(_STRANGER, (("status", EngineRequestStatus.RUNNING),)))

TOKENS = number(0, 0)
NEW_TOKENS = number(1, 1, _NO_NUMBERS)
WRITTEN = LENGTH = wrong(*_NO_LENGTHS)
SLOTS = {
    "request": ASKING,
    "num_new_tokens": NEW_TOKENS,
    "num_new_computed_tokens": wrong(*NEGATIVE),
    "new_computed_pages": wrong([[]], 1, "pages", log="hits"),
    "num_lookahead_tokens": wrong(*NEGATIVE),
    "delay_cache_pages": FLAG,
}
RANKING = {"request": REQUEST, "priority": PRIORITY, "num_tokens": LENGTH, "expires_at": EXPIRY}
IDS = wrong_numbers([-1], [2**31], [True], [1.0], 1, None)
PIN_ID = Kind(fault=lambda source, known, _: source.likely([max([*known.pins, 6]) + 1], NEGATIVE))
SWAP_ID = Kind(fault=lambda source, known, _: source.likely([max([*known.flights, 2]) + 1, -1], NO_INTS))
SHARD = Kind(fault=lambda source, known, _: source.likely([known.first[0], -1], NO_INTS))
AS_MANY = number(1, 1)

# -- A step of several requests ----------------------------------------------------------------------------------------


def _each(name: str, *values: Any, alone: Any = None) -> Kind:
    """A list with an entry for each request: the last is wrong, there is one too few or too many, or it is no list.

    An array of two dimensions is none either.

    Args:
        name: the argument.
        values: values that no entry may have.
        alone: what is given instead of a list.
    """

    def spoil(source: Source, known: Any, given: Given) -> Any:
        good = given[name]
        others = [good[:-1], [*good, 1], None, alone, *columns(known, good)]
        return source.one_of([*([*good[:-1], value] for value in values), *others])

    return Kind(fault=spoil)


STEP = {
    "slots": _each("slots", 99, -1, True, 1.0),
    "num_computed_tokens": _each("num_computed_tokens", -1, True, alone=1),
    "num_new_tokens": _each("num_new_tokens", 0, -1, True, 1.0, alone=0),
    "num_lookahead_tokens": _each("num_lookahead_tokens", -1, "1", alone=-1),
    "delay_cache_pages": FLAG,
    "tables": wrong(None, "no table", log="tables"),
    "rows": _each("rows", 99, -1, True, 1.0),
}

# -- Constructors ------------------------------------------------------------------------------------------------------

BUILT = {
    "num_pages": number(4, 4, (1, True, 4.0, -3, 2**31)),
    "kv_cache_groups": Kind(fault=lambda source, known, _: source.one_of(known.no_groups())),
    "max_model_len": number(8, 8, (0, "8", True, 8.0)),
}
SHARDS = number(2, 2, _NO_NUMBERS)
_NO_UNITS = wrong(*NO_INTS[:-1])
OPTIONS = {
    **dict.fromkeys(("enable_caching", "use_eagle"), FLAG),
    **POOL_OPTIONS,
    "num_host_pages": wrong(*NEGATIVE),
    **dict.fromkeys(("retention_interval", "match_unit"), _NO_UNITS),
}
PLACEMENT = wrong(2, -1, "fewest", None)
