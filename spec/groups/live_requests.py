"""R1, MAN-8: the records of live requests, and how requests are read."""

from dataclasses import dataclass, field
from itertools import count as numbers_from

from ..declarations import EngineRequest, EngineRequestStatus
from ..pool.pages import CachePage
from ..reading.arguments import attribute, integer, refusal, token_list

__all__ = [
    "GroupPages",
    "Live",
    "LiveRequests",
    "is_running",
    "read_computed",
    "read_id",
    "read_tokens",
    "request_id_of",
]


@dataclass
class Live:
    """A live request: one that has slots and is not freed yet.

    Attributes:
        request: the engine's object.
        slot: number of the request in batched steps, the lowest that was free at its admission (MAN-11).
        num_promised: largest computed + new tokens of any call; the bound up to which pages may be published (MAN-3).
        num_slots: number of tokens that have slots, look-ahead included.
        num_computed: computed tokens at the last call, or the hit tokens at admission (MAN-8).
        prompt_end: the longest length below the end of the tokens known at admission that a hit can have (RET-1).
        junction: the junction found at its admission; 0 if there was none (RET-2).
        num_first: the tokens that its admission published: known, promised and not delayed (MAN-17).
    """

    request: EngineRequest
    slot: int
    num_promised: int = 0
    num_slots: int = 0
    num_computed: int = 0
    prompt_end: int = 0
    junction: int = 0
    num_first: int = 0


@dataclass
class GroupPages:
    """A live request's pages in one group.

    Attributes:
        pages: the page list, a null page where the group needs none.
        num_hits: number of leading places whose pages hold content when the request becomes live: hits, or pages
            that came back from the host. They are never withdrawn (MAN-4).
        num_published: number of leading places whose pages are published; private pages among them are skipped (MAN-3).
        states: in a group of mode ``align``, the number of tokens that each place's state covers, by place (MAN-13).
        passed: pages that were let go although a hit of all that was computed until then needs them, by place (RET-3).
    """

    pages: list[CachePage]
    num_hits: int
    num_published: int
    states: dict[int, int] = field(default_factory=dict)
    passed: dict[int, CachePage] = field(default_factory=dict)


class LiveRequests:
    """The live requests of a manager.

    Attributes:
        by_id: records of the live requests, by id, in the order of their admission.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Live] = {}

    @property
    def num_waiting(self) -> int:
        """Tokens of live requests that are known now and were not computed at the last call for each (POOL-12)."""
        return sum(max(live.request.num_tokens - live.num_computed, 0) for live in self.by_id.values())

    def admit(self, request: EngineRequest, request_id: str, num_computed: int, num_slots: int = 0) -> Live:
        """Makes a request live in the lowest free slot (MAN-11), all that has slots promised; see `Live`."""
        taken = {live.slot for live in self.by_id.values()}
        slot = next(number for number in numbers_from() if number not in taken)
        live = self.by_id[request_id] = Live(request, slot, num_slots, num_slots, num_computed)
        return live

    def find(self, request: EngineRequest, request_id: str) -> Live | None:
        """The record of a request; None if it is not live, even if another request of its id is."""
        live = self.by_id.get(request_id)
        return live if live is not None and live.request is request else None

    def require(self, request: EngineRequest) -> Live:
        """The record of a request, which is refused unless it is live (R1)."""
        live = self.find(request, request_id_of(request))
        if live is None:
            raise refusal(ValueError, "R1", f"request {request.request_id!r} is not live")
        return live


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


def read_id(request_id: object) -> str:
    """Reads the argument ``request_id`` of a call that looks only (R1)."""
    if not isinstance(request_id, str):
        raise refusal(TypeError, "R1", f"request_id={request_id!r} must be a str")
    return request_id


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
