"""What a manager knows of a live request, and how it reads one (R1)."""

from dataclasses import dataclass

from ..declarations import EngineRequest, EngineRequestStatus
from ..reading.arguments import attribute, integer, refusal, token_list

__all__ = ["Live", "is_running", "read_computed", "read_tokens", "request_id_of"]


@dataclass
class Live:
    """A live request: one that was given slots and not yet freed.

    Attributes:
        request: the engine's object.
        slot: its number, for the batched step: the lowest that no live request had at its admission (MAN-11).
        num_promised: tokens up to which pages may be published: the most computed + new tokens so far.
        num_slots: tokens that have a slot, look-ahead included.
        num_computed: computed tokens at the last call, at its admission those that it hit (MAN-8).
    """

    request: EngineRequest
    slot: int
    num_promised: int = 0
    num_slots: int = 0
    num_computed: int = 0


def request_id_of(request: EngineRequest) -> str:
    """Reads the id of a request, and that it has all that is read of one (R1).

    Any text is an id; it is hostile, and every message shows it by repr (SEC-4). Of a class derived from ``str`` the
    text counts. What changes a manager works with what was read before its first change, so that nothing that the
    engine wrote runs amid the changes and can raise there.
    """
    for name in (
        "all_token_ids",
        "num_tokens",
        "num_computed_tokens",
        "status",
        "extra_keys",
        "sampling_params",
    ):
        attribute(request, name)
    request_id = attribute(request, "request_id")
    if not isinstance(request_id, str):
        raise refusal(TypeError, "R1", f"request.request_id={request_id!r} must be a str")
    return str.__str__(request_id)


def read_tokens(request: EngineRequest) -> list[int]:
    """Reads a request's tokens, as many as it says it has (R1)."""
    request_id_of(request)
    tokens = token_list("request.all_token_ids", request.all_token_ids)
    if request.num_tokens != len(tokens):
        raise refusal(
            ValueError,
            "R1",
            f"request.num_tokens={request.num_tokens}, but all_token_ids has {len(tokens)}",
        )
    return tokens


def read_computed(name: str, value: object, live: Live | None, has_states: bool) -> int:
    """Reads how many tokens of a request are computed: they have slots and never fall (MAN-8).

    Args:
        name: what the number is called.
        value: the number.
        live: the request, None if it is not live.
        has_states: whether there is a state group: a state is after the tokens that the last call promised, and
            after no others (MAN-13).
    """
    computed = integer(name, value)
    if computed > (live.num_slots if live else 0):
        raise refusal(ValueError, "MAN-8", f"{name}={computed}: only {live.num_slots if live else 0} have slots")
    if live is not None and computed < live.num_computed:
        raise refusal(ValueError, "MAN-8", f"{name}={computed} fell from {live.num_computed}")
    if live is not None and has_states and computed != live.num_promised:
        raise refusal(ValueError, "MAN-13", f"{name}={computed}: the states are after {live.num_promised} tokens")
    return computed


def is_running(request: EngineRequest) -> bool:
    """Whether a request's status is the member named ``RUNNING`` of whatever enumeration the engine has."""
    return getattr(request.status, "name", None) == EngineRequestStatus.RUNNING.name
