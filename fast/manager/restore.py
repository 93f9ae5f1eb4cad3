"""MAN-14: a manager from a snapshot that anybody may have written (SEC-3).

First the manager is made as it was at first, if the snapshot tells of as many pages as it would have. Then its parts
are read and filled in one after the other, and it is checked as a whole. What contradicts something else is refused,
never mended; and so is what the manager would write in another way, as equal states give equal snapshots.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, HashFunction, PageCopy
from kvproof.spec.declarations.codec import Part, plain
from kvproof.spec.declarations.json_kinds import counters_of
from kvproof.spec.declarations.snapshots import arguments_of, parts_of

from ..pool.hashing import init_none_hash
from ..reading.arguments import listed, refusal
from ..reading.request_reading import read_request_id
from .restored_requests import restore_requests
from .snapshot import snapshot_of

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["restored"]

ManagerKind = TypeVar("ManagerKind", bound="CacheManager")


def restored(kind: type[ManagerKind], snapshot: object, requests: object, hash_function: HashFunction) -> ManagerKind:
    """The manager of a snapshot; see `CacheManager.restore`. O(pages and cached tokens)."""
    if not isinstance(snapshot, Mapping):
        raise refusal(TypeError, "R1", f"snapshot must be a mapping, not {type(snapshot).__name__}")
    init_none_hash(b"", hash_function)  # refuses what is no hash function
    objects: dict[str, EngineRequest] = {}
    for request in listed("requests", requests):
        if objects.setdefault(read_request_id(request), request) is not request:
            raise refusal(ValueError, "MAN-14", f"requests has two objects of the id {request.request_id!r}")
    parts = parts_of(snapshot)
    _require_pages(parts)
    manager = _made(kind, parts, hash_function)
    pool, rules = manager.page_pool, [group.rule for group in manager.coordinator.groups]
    sizes = [rule.page_size if rule.publishes else 0 for rule in rules]
    pool.restore_cached(parts, sizes)
    held = restore_requests(manager, parts["requests"], objects)
    pool.restore_held(parts, held, _restore_pins(manager, parts))
    pool.restore_log(parts, sizes)
    _restore_counters(manager, parts["counters"])
    _restore_notes(manager, parts, objects)
    try:
        manager.check()
    except AssertionError as error:
        problem = str(error).partition("\n")[0]
        raise refusal(ValueError, "MAN-14", f"snapshot does not hold together: {problem}") from None
    again = snapshot_of(manager)
    for name, part in parts.items():
        if part.value != again[name] and plain(part.value) != plain(again[name]):
            raise part.damaged("must be what a manager in this state writes")
    return manager


def _require_pages(parts: Mapping[str, Part]) -> None:
    """Refuses more pages than the snapshot tells of, before any is made (SEC-3)."""
    lists = [parts["free"]]
    for request in parts["requests"].items():
        lists += [group.member("pages") for group in request.member("groups").items()]
    for pin in parts["pins"].items():
        lists += pin.member("pages").items()
    if parts["num_pages"].integer() > 1 + sum(map(len, lists)):
        raise parts["num_pages"].damaged("must be no more than are free or held", "SEC-3")


def _made(kind: type[ManagerKind], parts: Mapping[str, Part], hash_function: HashFunction) -> ManagerKind:
    """The manager as it was at first, but for the root of its keys."""
    arguments = arguments_of(parts)
    try:
        manager = kind(**arguments, hash_seed=b"", hash_function=hash_function)
    except (TypeError, ValueError) as error:
        raise refusal(ValueError, "MAN-14", f"snapshot tells of no manager: {error}") from None
    if manager.enable_caching != arguments["enable_caching"]:
        raise parts["enable_caching"].damaged("is true without a group")
    return manager


# -- Who holds the pages --------------------------------------------------------------------------


def _restore_pins(manager: "CacheManager", parts: Mapping[str, Part]) -> NDArray[np.int64]:
    """Pinned prefixes; returns how often they pin each page, `i64[num_pages]`."""
    pool, groups = manager.page_pool, manager.coordinator.groups
    pinned = np.zeros(pool.num_pages, np.int64)
    manager.prefixes.next_pin_id = parts["next_pin_id"].integer()
    manager.coordinator.swapped.next_id = parts["next_swap_id"].integer()
    for part in parts["pins"].items():
        members = part.members(("id", "num_tokens", "pages"))
        pin_id, num_tokens = (
            members["id"].integer(below=manager.prefixes.next_pin_id),
            members["num_tokens"].integer(minimum=1),
        )
        if pin_id in manager.prefixes.pinned:
            raise members["id"].damaged("is the id of another pin")
        hits = []
        for group, pages_part in zip(groups, members["pages"].items(len(groups)), strict=True):
            pages, first = pages_part.integers(below=pool.num_pages), group.rule.first_place(num_tokens)
            if len(pages) * group.rule.page_size != num_tokens or pages[:first].any() or not pages[first:].all():
                raise pages_part.damaged(f"must be the pages that {num_tokens} tokens need")
            np.add.at(pinned, pages, 1)
            hits.append(pages)
        if not any(pages.any() for pages in hits):
            raise part.damaged("must pin a page")
        manager.prefixes.pinned[pin_id] = num_tokens, hits
    pinned[0] = 0  # POOL-1
    return pinned


# -- What was counted and noted -------------------------------------------------------------------


def _restore_counters(manager: "CacheManager", part: Part) -> None:
    """The counters that the manager keeps."""
    manager.prefixes.restore_counters(counters_of(part))


def _restore_notes(manager: "CacheManager", parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]) -> None:
    """Which requests are known, and what waits to be handed out."""
    pool, groups = manager.page_pool, manager.coordinator.groups
    for part in parts["known"].items():
        request_id = part.text()
        if request_id in manager.prefixes.known:
            raise part.damaged(f"is {request_id!r}, which is named twice")
        if request_id not in objects:
            raise part.damaged(f"is {request_id!r}, a request that was not given")
        manager.prefixes.known[request_id] = objects[request_id]
    for part in parts["given_back"].items():
        id_part, tokens = part.items(2)
        request_id = id_part.text()
        if request_id in manager.prefixes.given_back:
            raise id_part.damaged(f"is {request_id!r}, which is named twice")
        manager.prefixes.given_back[request_id] = tokens.integer(minimum=1)
    for part in parts["copies"].items():
        id_part, *numbers = part.items(4)
        if id_part.text() not in manager.coordinator.live.slot_of:
            raise id_part.damaged(f"is {id_part.value!r}, which is not live")
        group = numbers[0].integer(below=len(groups))
        if not (groups[group].rule.has_states and groups[group].rule.gives_back):
            raise numbers[0].damaged(f"is {group}, a group whose states are not copied")
        source, destination = (page.integer(1, pool.num_pages) for page in numbers[1:])
        manager.coordinator.copies.append((id_part.text(), PageCopy(group, source, destination)))
