"""MAN-12, SEC-3: events as text, which another process can follow: a JSON document ``CacheEvents`` of format 1.

Its one field, ``events``, is the list of the events in order, each as a snapshot has it: its kind and its fields by
name, digests and contents in hexadecimal. Token ids are in it, and of a salt its fingerprint (SEC-2).
"""

import json
from collections.abc import Iterable

from ..cache.documents import parsed, read_document, written_document
from ..declarations import CacheCleared, CacheEvent, PageRemoved, PageStored
from ..declarations.codec import Part
from ..declarations.json_kinds import any_event_of, event_to_json
from ..reading.arguments import listed, refusal

__all__ = ["events_from_json", "events_to_json"]


def events_to_json(events: Iterable[CacheEvent]) -> str:
    """Events as text (MAN-12).

    Args:
        events: as `take_events` gave them.

    Raises:
        TypeError: one is no event.
    """
    given = listed("events", events)
    for event in given:
        if not isinstance(event, PageStored | PageRemoved | CacheCleared):
            raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
    return json.dumps(written_document("CacheEvents", {"events": [event_to_json(event) for event in given]}))


def events_from_json(json_str: str) -> list[CacheEvent]:
    """Events from what `events_to_json` wrote (SEC-3). How many pages and groups there are is not known here.

    Raises:
        TypeError: it is no str.
        ValueError: it is damaged.
    """
    events = Part("events", read_document("CacheEvents", parsed(json_str), ["events"])["events"])
    return [any_event_of(event) for event in events.items()]
