"""MAN-14: a manager from a snapshot. The format stands in `snapshot`.

The manager is made anew, filled in, and then checked as a whole: a number that contradicts another is found there,
and no contradiction is mended. Equal states give equal snapshots; so it must give the very snapshot that it was made
of, and what is written in another order, twice, or for nothing is found by that.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..declarations import (
    NUM_BUCKETS,
    CacheCounters,
    EngineRequest,
    ExtraKey,
    HashFunction,
    PageCopy,
    PageStored,
    Request,
)
from ..groups.cache_pages import CachePages
from ..groups.coordinator import GroupPages
from ..groups.live_requests import Live, read_tokens, request_id_of
from ..pool.hashing import PageHash, hash_page_tokens, init_none_hash, page_extra_keys, request_extra_keys
from ..pool.pages import CachePage
from ..reading.arguments import listed, refusal
from .prefix_manager import PinnedPrefix
from .snapshot import HEADER, VERSION
from .snapshot_fields import (
    damaged,
    event_from_json,
    extra_keys_from_json,
    group_from_json,
    read_digest,
    read_each,
    read_flag,
    read_integer,
    read_list,
    read_object,
    read_page_tokens,
    read_text,
    read_time,
)

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["restored"]

_AS_MADE = (
    *("num_pages", "max_model_len", "enable_caching", "use_eagle", "unhashed_first", "enable_events"),
    *("counter_sampling", "max_pinned_pages", "max_pinned_pages_per_salt", "num_host_pages", "none_hash", "groups"),
)
"""What the manager was made with."""

_KEYS = {
    *("kvproof", "version", *_AS_MADE, "now", "free", "priorities", "contents", "cached", "requests", "known"),
    *("given_back", "pins", "next_pin_id", "next_swap_id", "copies", "events", "counters", "clock"),
    *("stored_at", "freed_at"),
}


_MOST_SLOTS = 2**20
"""The most slots that a snapshot without groups can name."""

ManagerKind = TypeVar("ManagerKind", bound="CacheManager")


def restored(kind: type[ManagerKind], snapshot: object, requests: object, hash_function: HashFunction) -> ManagerKind:
    """The manager of a snapshot; see `CacheManager.restore`.

    What is of another kind or version, has other fields, or claims more pages than it tells of, is no snapshot
    (SEC-3); what contradicts itself is a damaged one (MAN-14).
    """
    if not isinstance(snapshot, Mapping):
        raise refusal(TypeError, "R1", f"snapshot must be a mapping, not {type(snapshot).__name__}")
    init_none_hash(b"", hash_function)  # refuses what is no hash function
    if snapshot.get("kvproof") != HEADER:
        raise damaged("kvproof", f"must be {HEADER!r}", "SEC-3")
    version = snapshot.get("version")
    if type(version) is not int or version != VERSION:
        raise damaged("version", f"must be {VERSION}", "SEC-3")
    if set(snapshot) != _KEYS:
        raise damaged("the object", f"must be an object with the keys {sorted(_KEYS)}", "SEC-3")
    objects: dict[str, EngineRequest] = {}
    for request in listed("requests", requests):
        if objects.setdefault(request_id_of(request), request) is not request:
            raise damaged("requests", f"given have two objects of the id {request.request_id!r}")
    loading = _Loading(kind, snapshot, objects, hash_function)
    loading.load()
    return loading.manager


class _Loading(Generic[ManagerKind]):
    """One manager on its way out of a snapshot.

    Args:
        kind: its class.
        snapshot: the snapshot, whose keys are right.
        objects: the engine's requests, by id.
        hash_function: the hash of its keys.
    """

    def __init__(
        self,
        kind: type[ManagerKind],
        snapshot: Mapping[str, Any],
        objects: Mapping[str, EngineRequest],
        hash_function: HashFunction,
    ) -> None:
        self._snapshot = snapshot
        self._objects = objects
        self._require_size()
        self.manager = self._made(kind, hash_function)
        self._pool = self.manager.page_pool
        self._pool.none_hash = read_digest("none_hash", snapshot["none_hash"])
        self._chain: list[tuple[PageHash, int]] = []

    def _require_size(self) -> None:
        """Refuses more pages than the snapshot tells of, before any is made (SEC-3)."""
        ids = list(read_list("free", self._snapshot["free"]))
        for request in read_list("requests", self._snapshot["requests"]):
            for group in read_list("groups", request.get("groups") if isinstance(request, Mapping) else None):
                ids += read_list("pages", group.get("pages") if isinstance(group, Mapping) else None)
        for pin in read_list("pins", self._snapshot["pins"]):
            for pages in read_list("pages", pin.get("pages") if isinstance(pin, Mapping) else None):
                ids += read_list("pages", pages)
        if read_integer("num_pages", self._snapshot["num_pages"]) > len(ids) + 1:
            raise damaged("num_pages", f"is {self._snapshot['num_pages']}, more than are free or held", "SEC-3")

    def _made(self, kind: type[ManagerKind], hash_function: HashFunction) -> ManagerKind:
        """The manager as it was at first."""
        given = {name: self._snapshot[name] for name in _AS_MADE}
        per_salt = given["max_pinned_pages_per_salt"]
        groups = self._each("groups", group_from_json)
        caching = read_flag("enable_caching", given["enable_caching"])
        try:
            manager = kind(
                read_integer("num_pages", given["num_pages"]),
                groups,
                read_integer("max_model_len", given["max_model_len"]),
                caching,
                read_flag("use_eagle", given["use_eagle"]),
                hash_seed=b"",
                hash_function=hash_function,
                unhashed_first=read_flag("unhashed_first", given["unhashed_first"]),
                enable_events=read_flag("enable_events", given["enable_events"]),
                counter_sampling=read_integer("counter_sampling", given["counter_sampling"]),
                max_pinned_pages=read_integer("max_pinned_pages", given["max_pinned_pages"]),
                max_pinned_pages_per_salt=(
                    None if per_salt is None else read_integer("max_pinned_pages_per_salt", per_salt)
                ),
                num_host_pages=read_integer("num_host_pages", given["num_host_pages"]),
            )
        except (TypeError, ValueError) as error:
            raise damaged("what the manager was made with", f"is refused: {error}") from None
        if manager.enable_caching != caching:
            raise damaged("enable_caching", "is true without a group")
        return manager

    def load(self) -> None:
        """Fills the manager in and checks it.

        Raises:
            ValueError: something is damaged (MAN-14).
        """
        self._load_contents()
        self._load_requests()
        self._load_pins()
        self._load_queue()
        self._load_notes()
        self._load_counts()
        try:
            self.manager.check()
        except AssertionError as error:
            raise damaged("the whole", f"does not hold together: {str(error).splitlines()[0]}") from None
        self._require_own_contents()
        self._require_same_snapshot()

    # -- Parts ------------------------------------------------------------------------------------

    def _load_contents(self) -> None:
        """The contents, their keys computed anew, and the cached map."""
        pool = self._pool
        depths: list[int] = []
        for place, (before, tokens, extra) in enumerate(read_each("contents", self._snapshot["contents"], 3)):
            name = f"contents[{place}]"
            before = read_integer(name, before, minimum=-1, below=place)
            ids = read_page_tokens(name, tokens)
            extra_keys = extra_keys_from_json(name, extra)
            parent, content = (
                (None, None) if before < 0 else (self._chain[before][0].hash_value, self._chain[before][1])
            )
            if before >= 0 and len(self._chain[before][0].token_ids) != len(ids):
                raise damaged(name, "has another number of tokens than the content before it")
            depths.append(0 if before < 0 else depths[before] + 1)
            if not _can_touch(extra_keys, depths[-1] * len(ids), (depths[-1] + 1) * len(ids)):
                raise damaged(name, "has extra keys that no request has at its place")
            key = hash_page_tokens(pool.hash_function, parent, ids, extra_keys, none_hash=pool.none_hash)
            self._chain.append((key, pool.content_id(content, ids, extra_keys)))
        for group, page_id, place in read_each("cached", self._snapshot["cached"], 3):
            rules = self.manager.coordinator.rules[self._group("cached", group)]
            page = self._page("cached", page_id)
            key, content = self._chain[read_integer("cached", place, below=len(self._chain))]
            if page.page_hash is not None:
                raise damaged("cached", f"names page {page.page_id} twice")
            if len(key.token_ids) != rules.page_size or not rules.num_publishable(rules.page_size):
                raise damaged("cached", f"names page {page.page_id} for what group {rules.group_id} can't cache")
            if not pool.enable_caching:
                raise damaged("cached", "names pages with caching off")
            pool.publish([page], [(key, content)], rules.group_id)

    def _load_requests(self) -> None:
        """Live requests with their page lists, and the requests that are known."""
        manager = self.manager
        names = ("id", "slot", "num_promised", "num_slots", "num_computed", "groups")
        # with a group each live request has a page that no other one ends with, and slots are the lowest free ones
        most_slots = manager.num_pages if manager.num_kv_cache_groups else _MOST_SLOTS
        for place, given in enumerate(read_list("requests", self._snapshot["requests"])):
            name = f"requests[{place}]"
            entry = read_object(name, given, names)
            request = self._object(name, entry["id"])
            if request.request_id in manager._live:
                raise damaged(name, f"is the second one of the id {request.request_id!r}")
            slot = read_integer(f"{name}.slot", entry["slot"], below=most_slots)
            counts = (read_integer(f"{name}.{number}", entry[number]) for number in names[2:5])
            manager._live[request.request_id] = Live(request, slot, *counts)
            groups = read_list(f"{name}.groups", entry["groups"], manager.num_kv_cache_groups)
            manager.coordinator.held[request.request_id] = [self._held(name, group) for group in groups]
        for request_id in read_list("known", self._snapshot["known"]):
            request = self._object("known", request_id)
            if request.request_id in manager._known:
                raise damaged("known", f"has the id {request_id!r} twice")
            manager._known[request.request_id] = request

    def _held(self, name: str, given: object) -> GroupPages:
        entry = read_object(name, given, ("pages", "num_hits", "num_published", "states"))
        pages = self._pages(f"{name}.pages", entry["pages"])
        states = {
            read_integer(f"{name}.states", place, below=len(pages)): read_integer(f"{name}.states", tokens, minimum=1)
            for place, tokens in read_each(f"{name}.states", entry["states"], 2)
        }
        for page in pages:
            self._hold(page)
        hits = read_integer(f"{name}.num_hits", entry["num_hits"])
        return GroupPages(pages, hits, read_integer(f"{name}.num_published", entry["num_published"]), states)

    def _load_pins(self) -> None:
        """Pinned prefixes."""
        manager = self.manager
        manager._next_pin_id = read_integer("next_pin_id", self._snapshot["next_pin_id"])
        manager._swapped.next_swap_id = read_integer("next_swap_id", self._snapshot["next_swap_id"])
        for given in read_list("pins", self._snapshot["pins"]):
            entry = read_object("pins", given, ("id", "num_tokens", "pages"))
            pin_id = read_integer("pins id", entry["id"], below=manager._next_pin_id)
            lists = [
                self._pages("pins pages", pages)
                for pages in read_list("pins pages", entry["pages"], manager.num_kv_cache_groups)
            ]
            if pin_id in manager._pinned:
                raise damaged("pins", f"has the id {pin_id} twice")
            tokens = read_integer("pins num_tokens", entry["num_tokens"], minimum=1)
            manager._pinned[pin_id] = PinnedPrefix(pin_id, tokens, CachePages(lists))
            for page in (page for pages in lists for page in pages if not page.is_null):
                self._hold(page)
                self._pool._pins[page.page_id] += 1

    def _load_queue(self) -> None:
        """The free pages in eviction order, the priorities and the time."""
        pool = self._pool
        free = [self._page("free", page_id) for page_id in self._snapshot["free"]]
        if len(set(free)) < len(free):
            raise damaged("free", "names a page twice")
        pool._free.popleft_n(pool._free.num_free_pages)
        pool._free.append_n(free)
        pool.now = read_time("now", self._snapshot["now"])
        for page_id, priority, end in read_each("priorities", self._snapshot["priorities"], 3):
            number = read_integer("priorities", priority, minimum=-(2**31), below=2**31)
            pool._priority[self._page("priorities", page_id).page_id] = number, read_time("priorities", end)

    def _load_notes(self) -> None:
        """What waits to be handed out or counted."""
        manager = self.manager
        for request_id, tokens in read_each("given_back", self._snapshot["given_back"], 2):
            manager._given_back[read_text("given_back", request_id)] = read_integer("given_back", tokens, minimum=1)
        for request_id, group, source, destination in read_each("copies", self._snapshot["copies"], 4):
            if read_text("copies", request_id) not in manager._live:
                raise damaged("copies", f"are of {request_id!r}, which is not live")
            rules = manager.coordinator.rules[self._group("copies", group)]
            if not rules.copies_states:
                raise damaged("copies", f"are of group {group}, whose states are not copied")
            pages = self._page("copies", source).page_id, self._page("copies", destination).page_id
            manager.coordinator.noted_copies.append((request_id, PageCopy(rules.group_id, *pages)))
        num_groups, num_pages = manager.num_kv_cache_groups, manager.num_pages
        self._pool._events = self._each(
            "events", lambda name, value: event_from_json(name, value, num_groups, num_pages)
        )
        for event in self._pool._events:
            if isinstance(event, PageStored):
                size = manager.coordinator.rules[event.group_id].page_size
                if len(event.token_ids) != size:
                    raise damaged("events", f"of group {event.group_id} must have {size} tokens")

    def _load_counts(self) -> None:
        """Counters and clocks."""
        names = [field.name for field in fields(CacheCounters)]
        entry = read_object("counters", self._snapshot["counters"], names)
        histograms = {"page_lifetimes": self._pool._page_lifetimes, "reuse_gaps": self._pool._reuse_gaps}
        numbers: dict[str, int] = {}
        for name in names:
            if name in histograms:
                buckets = read_list(name, entry[name], NUM_BUCKETS)
                histograms[name][:] = [read_integer(name, count) for count in buckets]
            else:
                numbers[name] = read_integer(name, entry[name])
        self._pool._evictions = numbers["evictions"]
        self.manager._counted = CacheCounters(
            requests=numbers["requests"],
            queried_tokens=numbers["queried_tokens"],
            hit_tokens=numbers["hit_tokens"],
            preemptions=numbers["preemptions"],
            preempted_tokens=numbers["preempted_tokens"],
        )
        self._pool._clock = read_integer("clock", self._snapshot["clock"])
        self._pool._stored_at, self._pool._freed_at = self._clocks("stored_at"), self._clocks("freed_at")

    def _clocks(self, name: str) -> dict[int, int]:
        return {
            self._page(name, page_id).page_id: read_integer(name, clock)
            for page_id, clock in read_each(name, self._snapshot[name], 2)
        }

    def _require_same_snapshot(self) -> None:
        """Refuses a snapshot other than the one that the manager made of it gives."""
        again = self.manager.snapshot()
        for name, value in self._snapshot.items():
            if value != again[name] and _plain(value) != _plain(again[name]):
                raise damaged(name, "is not what a manager in this state writes")

    def _require_own_contents(self) -> None:
        """Refuses requests other than those of the snapshot: a page that one published holds its tokens (R2)."""
        manager = self.manager
        for request_id, live in manager._live.items():
            tokens = read_tokens(live.request)
            chains = manager._chains(live.request, tokens)
            for rules, held in zip(manager.coordinator.rules, manager.coordinator.held[request_id], strict=True):
                for place, page in enumerate(held.pages[: held.num_published]):
                    content = self._pool.content_of(page)
                    chain = chains.get(rules.page_size, ())
                    if content is None:
                        continue
                    if place >= len(chain) or chain[place][1] != content:
                        raise damaged("requests", f"of the id {request_id!r}: page {page.page_id} holds other tokens")
                    if page.page_hash is None or page.page_hash.group_id != rules.group_id:
                        raise damaged("requests", f"of the id {request_id!r}: page {page.page_id} is another group's")
                if held.num_published * rules.page_size > len(tokens):
                    raise damaged("requests", f"of the id {request_id!r}: {held.num_published} pages are published")

    # -- Ids --------------------------------------------------------------------------------------

    def _each(self, name: str, read: Any) -> list[Any]:
        return [read(f"{name}[{place}]", value) for place, value in enumerate(read_list(name, self._snapshot[name]))]

    def _group(self, name: str, value: object) -> int:
        return read_integer(f"{name} group", value, below=self.manager.num_kv_cache_groups)

    def _page(self, name: str, value: object) -> CachePage:
        """Reads the id of a page, not the null page's."""
        return self._pool.pages[read_integer(f"{name} page", value, minimum=1, below=self._pool.num_pages)]

    def _pages(self, name: str, value: object) -> list[CachePage]:
        """Reads a page list, null pages as 0."""
        ids = [read_integer(name, page_id, below=self._pool.num_pages) for page_id in read_list(name, value)]
        return [self._pool.pages[page_id] for page_id in ids]

    def _object(self, name: str, value: object) -> EngineRequest:
        request = self._objects.get(read_text(name, value))
        if request is None:
            raise damaged(name, f"needs the request {value!r}, which was not given")
        return request

    def _hold(self, page: CachePage) -> None:
        if not page.is_null:
            page._ref_cnt += 1


def _can_touch(extra_keys: tuple[ExtraKey, ...] | None, start: int, end: int) -> bool:
    """Whether these are the extra keys of some request that touch its tokens ``[start, end)`` (HASH-2)."""
    try:
        of_request = request_extra_keys(Request("any", [], extra_keys or ()))
    except (TypeError, ValueError):
        return False
    return page_extra_keys(of_request, start, end) == extra_keys


def _plain(value: Any) -> Any:
    """A value with lists where tuples stand, and objects of one kind, as JSON has them."""
    if isinstance(value, Mapping):
        return {name: _plain(own) for name, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value
