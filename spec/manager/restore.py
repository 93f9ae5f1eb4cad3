"""MAN-14: a manager from a snapshot. What a snapshot looks like stands in `declarations.snapshots`.

The manager is made anew, filled in, and then checked as a whole: a number that contradicts another is found there,
and no contradiction is mended. Equal states give equal snapshots; so it must give the very snapshot that it was made
of, and what is written in another order, twice, or for nothing is found by that.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from ..declarations import CacheCounters, EngineRequest, HashFunction, PageCopy
from ..declarations.codec import BEYOND, Part, plain
from ..declarations.json_kinds import counters_of
from ..declarations.snapshots import arguments_of, parts_of
from ..groups.cache_pages import CachePages
from ..groups.live_requests import GroupPages, Live, read_tokens, request_id_of
from ..pool.hashing import init_none_hash
from ..pool.pages import CachePage
from ..reading.arguments import listed, refusal
from .prefixes import PinnedPrefix

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["restored"]

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
    parts = parts_of(snapshot)
    objects: dict[str, EngineRequest] = {}
    for request in listed("requests", requests):
        if objects.setdefault(request_id_of(request), request) is not request:
            raise refusal(ValueError, "MAN-14", f"requests has two objects of the id {request.request_id!r}")
    loading = _Loading(kind, parts, objects, hash_function)
    loading.load()
    return loading.manager


class _Loading(Generic[ManagerKind]):
    """One manager on its way out of a snapshot.

    Args:
        kind: its class.
        parts: the parts of the snapshot.
        objects: the engine's requests, by id.
        hash_function: the hash of its keys.
    """

    def __init__(
        self,
        kind: type[ManagerKind],
        parts: Mapping[str, Part],
        objects: Mapping[str, EngineRequest],
        hash_function: HashFunction,
    ) -> None:
        self._parts = parts
        self._objects = objects
        self._require_size()
        self.manager = self._made(kind, hash_function)
        self._pool = self.manager.page_pool
        self._held_pages: list[CachePage] = []
        self._pinned_pages: list[CachePage] = []

    def _require_size(self) -> None:
        """Refuses more pages than the snapshot tells of, before any is made (SEC-3)."""
        lists = [self._parts["free"]]
        for request in self._parts["requests"].items():
            lists += [group.member("pages") for group in request.member("groups").items()]
        for pin in self._parts["pins"].items():
            lists += pin.member("pages").items()
        num_pages = self._parts["num_pages"]
        if num_pages.integer() > sum(map(len, lists)) + 1:
            raise num_pages.damaged(f"is {num_pages.value}, more than are free or held", "SEC-3")

    def _made(self, kind: type[ManagerKind], hash_function: HashFunction) -> ManagerKind:
        """The manager as it was at first."""
        arguments = arguments_of(self._parts)
        try:
            manager = kind(**arguments, hash_seed=b"", hash_function=hash_function)
        except (TypeError, ValueError) as error:
            raise _damaged(f"what the manager was made with is refused: {error}") from None
        if manager.enable_caching != arguments["enable_caching"]:
            raise self._parts["enable_caching"].damaged("is true without a group")
        return manager

    def load(self) -> None:
        """Fills the manager in and checks it.

        Raises:
            ValueError: something is damaged (MAN-14).
        """
        rules = self.manager.coordinator.rules
        sizes = [own.page_size if own.num_publishable(own.page_size) else 0 for own in rules]
        self._pool.restore_cached(self._parts, sizes)
        self._load_requests()
        self._load_pins()
        self._pool.restore_held(self._parts, self._held_pages, self._pinned_pages)
        self._pool.restore_log(self._parts, sizes)
        self._load_notes()
        self._load_counts()
        try:
            self.manager.check()
        except AssertionError as error:
            raise _damaged(f"the whole does not hold together: {str(error).splitlines()[0]}") from None
        self._require_own_contents()
        self._require_same_snapshot()

    # -- Parts ------------------------------------------------------------------------------------

    def _load_requests(self) -> None:
        """Live requests with their page lists, and the requests that are known."""
        manager, live = self.manager, self.manager.coordinator.live.by_id
        names = ("id", "slot", "num_promised", "num_slots", "num_computed", "groups")
        # with a group each live request has a page that no other one ends with, and slots are the lowest free ones
        most_slots = manager.num_pages if manager.num_kv_cache_groups else _MOST_SLOTS
        for part in self._parts["requests"].items():
            members = part.members(names)
            request = self._object(members["id"])
            if request.request_id in live:
                raise part.damaged(f"is the second one of the id {request.request_id!r}")
            slot = _within("requests slot", members["slot"], 0, most_slots)
            live[request.request_id] = Live(request, slot, *(members[name].integer() for name in names[2:5]))
            groups = members["groups"].items(manager.num_kv_cache_groups)
            manager.coordinator.held[request.request_id] = [self._held(group) for group in groups]
        for part in self._parts["known"].items():
            request = self._object(part)
            if request.request_id in manager.prefixes.known:
                raise self._parts["known"].damaged(f"has the id {request.request_id!r} twice")
            manager.prefixes.known[request.request_id] = request

    def _held(self, part: Part) -> GroupPages:
        members = part.members(("pages", "num_hits", "num_published", "states"))
        pages = self._pages("requests pages", members["pages"])
        states = {}
        for state in members["states"].items():
            place, tokens = state.items(2)
            states[_within("requests states", place, 0, len(pages))] = tokens.integer(minimum=1)
        self._held_pages += pages
        return GroupPages(pages, members["num_hits"].integer(), members["num_published"].integer(), states)

    def _load_pins(self) -> None:
        """Pinned prefixes."""
        manager, pinned = self.manager, self.manager.prefixes.pinned
        manager.prefixes.next_pin_id = self._parts["next_pin_id"].integer()
        manager.coordinator.swapped.next_swap_id = self._parts["next_swap_id"].integer()
        for part in self._parts["pins"].items():
            members = part.members(("id", "num_tokens", "pages"))
            pin_id = _within("pins id", members["id"], 0, manager.prefixes.next_pin_id)
            lists = [self._pages("pins pages", pages) for pages in members["pages"].items(manager.num_kv_cache_groups)]
            if pin_id in pinned:
                raise part.damaged(f"has the id {pin_id} twice")
            pinned[pin_id] = PinnedPrefix(pin_id, members["num_tokens"].integer(minimum=1), CachePages(lists))
            for pages in lists:
                self._pinned_pages += pages

    def _load_notes(self) -> None:
        """What waits to be handed out or counted."""
        manager = self.manager
        for part in self._parts["given_back"].items():
            id_part, tokens = part.items(2)
            manager.prefixes.given_back[id_part.text()] = tokens.integer(minimum=1)
        for part in self._parts["copies"].items():
            id_part, group, *ids = part.items(4)
            if id_part.text() not in manager.coordinator.live.by_id:
                raise part.damaged(f"is of {id_part.text()!r}, which is not live")
            rules = manager.coordinator.rules[self._group("copies", group)]
            if not rules.copies_states:
                raise part.damaged(f"is of group {rules.group_id}, whose states are not copied")
            source, destination = (self._page("copies", page_id).page_id for page_id in ids)
            manager.coordinator.noted_copies.append((id_part.text(), PageCopy(rules.group_id, source, destination)))

    def _load_counts(self) -> None:
        """The counters that the manager keeps."""
        counters = counters_of(self._parts["counters"])
        self.manager.prefixes.counted = CacheCounters(
            requests=counters.requests,
            queried_tokens=counters.queried_tokens,
            hit_tokens=counters.hit_tokens,
            preemptions=counters.preemptions,
            preempted_tokens=counters.preempted_tokens,
        )

    def _require_same_snapshot(self) -> None:
        """Refuses a snapshot other than the one that the manager made of it gives."""
        again = self.manager.snapshot()
        for name, part in self._parts.items():
            if part.value != again[name] and plain(part.value) != plain(again[name]):
                raise part.damaged("is not what a manager in this state writes")

    def _require_own_contents(self) -> None:
        """Refuses requests other than those of the snapshot: a page that one published holds its tokens (R2)."""
        manager = self.manager
        for request_id, live in manager.coordinator.live.by_id.items():
            tokens = read_tokens(live.request)
            chains = manager.prefixes.chains(live.request, tokens)
            for rules, held in zip(manager.coordinator.rules, manager.coordinator.held[request_id], strict=True):
                for place, page in enumerate(held.pages[: held.num_published]):
                    content = self._pool.content_of(page)
                    chain = chains.get(rules.page_size, ())
                    if content is None:
                        continue
                    if place >= len(chain) or chain[place][1] != content:
                        raise _damaged(f"requests of the id {request_id!r}: page {page.page_id} holds other tokens")
                    if page.page_hash is None or page.page_hash.group_id != rules.group_id:
                        raise _damaged(f"requests of the id {request_id!r}: page {page.page_id} is another group's")
                if held.num_published * rules.page_size > len(tokens):
                    raise _damaged(f"requests of the id {request_id!r}: {held.num_published} pages are published")

    # -- Ids --------------------------------------------------------------------------------------

    def _group(self, name: str, part: Part) -> int:
        return _within(f"{name} group", part, 0, self.manager.num_kv_cache_groups)

    def _page(self, name: str, part: Part) -> CachePage:
        """Reads the id of a page, not the null page's."""
        return self._pool.pages[_within(f"{name} page", part, 1, self._pool.num_pages)]

    def _pages(self, name: str, part: Part) -> list[CachePage]:
        """Reads a page list, null pages as 0."""
        return [self._pool.pages[_within(name, page_id, 0, self._pool.num_pages)] for page_id in part.items()]

    def _object(self, part: Part) -> EngineRequest:
        request = self._objects.get(part.text())
        if request is None:
            raise part.damaged(f"needs the request {part.value!r}, which was not given")
        return request


def _damaged(problem: str) -> Exception:
    """The error for a snapshot of which no single part can be named (MAN-14)."""
    return refusal(ValueError, "MAN-14", f"snapshot: {problem}")


def _within(name: str, part: Part, minimum: int, below: int) -> int:
    """Reads an integer in [minimum, below), which are bounds of this manager's."""
    number = part.integer(minimum=-BEYOND)
    if not minimum <= number < below:
        raise _damaged(f"{name} is {number}, which is out of range")
    return number
