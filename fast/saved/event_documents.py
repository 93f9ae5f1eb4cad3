"""MAN-12, SEC-3: events as text, by which a follower in another process is told of them.

::

    format          1
    kind            "CacheEvents"
    events          [{kind, the fields of the event by name}], in order; digests and contents in hexadecimal

An event stands there as in a snapshot: with token ids, and of a salt with its fingerprint (SEC-2). The specification's
texts are the same: either package reads the other's.
"""

import json
from collections.abc import Iterable

from kvproof.spec.declarations import CacheCleared, CacheEvent, PageRemoved, PageStored
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import any_event_of, event_to_json

from ..cache.documents import document, fields_of, parsed
from ..reading.arguments import listed, refusal

__all__ = ["events_from_json", "events_to_json"]

_KIND = "CacheEvents"


def events_to_json(events: Iterable[CacheEvent]) -> str:
    """Events as one line of JSON. O(their size).

    Args:
        events: as ``take_events`` returned them.

    Raises:
        TypeError: one is no event.
    """
    given = listed("events", events)
    for event in given:
        if not isinstance(event, PageStored | PageRemoved | CacheCleared):
            raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
    return json.dumps(document(_KIND, {"events": [event_to_json(event) for event in given]}))


def events_from_json(json_str: str) -> list[CacheEvent]:
    """Reads what `events_to_json` of this package or the specification's wrote. O(its length).

    Which pages and groups the pool has is not known here; what contradicts itself is the follower's to refuse.

    Raises:
        TypeError: it is no str.
        ValueError: it is damaged (SEC-3).
    """
    events = Part("events", fields_of(_KIND, parsed(json_str), ("events",))["events"])
    return [any_event_of(event) for event in events.items()]
