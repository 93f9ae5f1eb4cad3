"""R1, MAN-8: a manager's record of a live request, and how requests are read."""

from dataclasses import dataclass

from ..declarations import EngineRequest, EngineRequestStatus
from ..reading.arguments import attribute, integer, refusal, token_list

__all__ = ["Live", "is_running", "read_computed", "read_tokens", "request_id_of"]


@dataclass
class Live:
    """A live request: one that has slots and is not freed yet.

    Attributes:
        request: the engine's object.
        slot: number of the request in batched steps, the lowest that was free at its admission (MAN-11).
        num_promised: largest computed + new tokens of any call; the bound up to which pages may be published (MAN-3).
        num_slots: number of tokens that have slots, look-ahead included.
        num_computed: computed tokens at the last call, or the hit tokens at admission (MAN-8).
    """

    request: EngineRequest
    slot: int
    num_promised: int = 0
    num_slots: int = 0
    num_computed: int = 0


def request_id_of(request: EngineRequest) -> str:
    """Reads a request's id, and checks that the request has all attributes that are read of one (R1).

    Any text is an id; it is hostile, and every message shows it by repr (SEC-4). An id of a class derived from ``str``
    is turned into a plain ``str``: no method that the engine wrote may run, and raise, while the manager changes.
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
    """Reads a request's tokens, whose number must be ``num_tokens`` (R1)."""
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
    """Reads a request's computed tokens: each has a slot, and their number never falls (MAN-8).

    Args:
        name: the argument's name, for messages.
        value: the argument.
        live: the live request; None if it is not live.
        has_states: whether there is a state group; a state covers exactly the tokens that the last call promised,
            so these must be the computed ones (MAN-13).
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
    """Whether a request's status has the name ``RUNNING``, in any enumeration."""
    return getattr(request.status, "name", None) == EngineRequestStatus.RUNNING.name
