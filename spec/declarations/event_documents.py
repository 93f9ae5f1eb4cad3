"""MAN-12, SEC-3: events as text, which another process can follow: a JSON document ``CacheEvents`` of format 1.

Its one field, ``events``, is the list of the events in order, each as a snapshot has it: its kind and its fields by
name, digests and contents in hexadecimal. Token ids are in it, and of a salt its fingerprint (SEC-2).
"""

import json
from collections.abc import Iterable

from .codec import Part
from .documents import document, fields_of, parsed
from .events import CacheCleared, CacheEvent, PageRemoved, PageStored
from .json_kinds import any_event_of, event_to_json
from .reading import listed, refusal

__all__ = ["events_from_json", "events_to_json"]

_KIND = "CacheEvents"


def events_to_json(events: Iterable[CacheEvent]) -> str:
    """Events as one line of JSON (MAN-12). O(their size).

    Args:
        events: as `take_events` returned them.

    Raises:
        TypeError: one is no event.
    """
    given = listed("events", events)
    for event in given:
        if not isinstance(event, PageStored | PageRemoved | CacheCleared):
            raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
    return json.dumps(document(_KIND, {"events": [event_to_json(event) for event in given]}))


def events_from_json(json_str: str) -> list[CacheEvent]:
    """Events from what `events_to_json` wrote (SEC-3). O(its length).

    Which pages and groups the pool has is not known here; what contradicts itself is the follower's to refuse.

    Raises:
        TypeError: it is no str.
        ValueError: it is damaged.
    """
    events = Part("events", fields_of(_KIND, parsed(json_str), ("events",))["events"].value)
    return [any_event_of(event) for event in events.items()]
