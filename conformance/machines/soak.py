"""The soak: long lives of managers at the sizes of engines, drawn without Hypothesis and compared by samples.

Faults that need size are out of reach of the small worlds of the other machines: they show past so many live requests,
so many pages in a list, so long a life. Here requests are hundreds, lists have up to 2,000 pages, and what engines do
in a loop is one operation. Results are compared call by call, and the whole state after the first calls, after one call
in so many, and at the end; where it differs, the calls since it was last compared are made again with a look at the
state after each.

Every operation takes a few plain numbers and finds out the rest when it is made: which requests are live, and what
comes next of them. So what is left of a life when most of it is left out still makes sense.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kvproof.spec.declarations import CacheSalt, ExtraKey, MultimodalItem, Request

from ..calls.deviation import Deviation, TracedStep
from ..calls.kinds import numbers_of
from ..calls.manager import MANAGER, event
from .base import Both, Nothing, Side, same
from .pool_state import order_clause
from .properties import operation
from .session import EnoughError
from .soak_base import Served, hit_of, page_ids_of
from .soak_lives import STEM, Life, first_token
from .soak_moves import SoakMoves

__all__ = ["SMALL_LIVES", "Soak"]

_CALLS_A_STEP = 4
"""The calls of a life for each of the machine's steps, by which is measured how long counterexamples are made shorter.

With hundreds of requests or thousands of pages, the calls of this machine cost more than those of others."""

SMALL_LIVES = 4
"""Lives in small worlds for each in a large one. They cost little, and what is let go there is soon needed again."""

_ALONE = 8
"""The pages that are taken one by one where all are taken: a backend may take one page in another way than many."""


def _ranges(parts: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"*range({first}, {first + count})" for first, count, *_ in parts if count)


def _shown(**features: object) -> list[str]:
    """The features of a call that it shows, see `meetings.FEATURES`."""
    return [name for name, is_shown in features.items() if is_shown]


def _items(parts: Sequence[Sequence[int]], most: int) -> Iterator[MultimodalItem]:
    """The items for which ranges of tokens stand, those behind the first ``most`` tokens left out."""
    offset = 0
    for _, count, *content in parts:
        length = min(count, most - offset)
        if content and length > 0:
            yield MultimodalItem(b"item %d" % content[0], offset, length)
        offset += count


class Soak(SoakMoves):
    """Managers with tables, pins, priorities, host memory and events, whatever of it the backend has."""

    name = "soak"

    @classmethod
    def walk(cls, seed: int, lives: int) -> None:
        """Lives some lives, bound to a session, which keeps what is found: this is how the machine searches."""
        for life in cls.lives(seed, lives):
            soak = cls()
            try:
                soak.live(life)
            except EnoughError:
                return
            except Deviation as found:
                soak.look_closely(found)
                return
            finally:
                cls.session.note_drawn(soak.met.names())
                soak.teardown()

    @classmethod
    def lives(cls, seed: int, count: int) -> Iterator[Life]:
        """The lives of a run: those in small worlds first, which take less long.

        Args:
            seed: the seed of the run.
            count: the number of lives in large worlds.
        """
        most = round(_CALLS_A_STEP * cls.num_steps * max(cls.session.effort, 1.0))
        small = range(count, count * (1 + SMALL_LIVES))
        for number in (*small, *range(count)):
            yield Life(seed, number, most, is_small=number in small)

    def live(self, life: Life) -> None:
        """Lives a life to its end: until it has had all of its calls, or has touched as many pages as it may."""
        shards = {"shards": life.shards} if life.shards else {}
        self.repeat_step(TracedStep("construct", {"world": life.world, "rows": life.rows, **shards}))
        left = life.work
        for _ in range(0 if self._over else life.length):  # over: it cannot be made, as was told before
            name, arguments = life.next(self)
            self.repeat_step(TracedStep(name, (*arguments, {}), is_operation=True))
            if self._over:
                return
            left -= self.count_work(name, arguments)
            if left < 0:
                break
        self.closely = True
        for name in ("drain", "look"):
            self.repeat_step(TracedStep(name, ({},), is_operation=True))

    def look_closely(self, found: Deviation) -> None:
        """Makes the calls since the state was last right again, to see which of them it is that goes wrong."""
        session = type(self).session
        again = type(type(self).__name__, (type(self),), {"session": session.again(session.backend)})()
        try:
            for place, made in enumerate(found.trace):
                again.closely = place >= self._looked - 1  # and after the last one that was right
                again.repeat_step(made)
        except Deviation as earlier:
            del session.deviations[found.clause]
            session.record(earlier)

    # -- Requests come --------------------------------------------------------------------------------------

    def _bring(self, name: str, number: int, parts: Sequence[Sequence[int]], salt: str) -> Request:
        most = self.world.max_model_len
        keys: tuple[ExtraKey, ...] = (*([CacheSalt(salt)] if salt else []), *_items(parts, most))
        tokens = np.concatenate([np.arange(first, first + count, dtype=np.int32) for first, count, *_ in parts])
        request = Request(name, tokens[:most], keys)
        self.cases[name] = Served(request, number)
        return request

    @operation
    def come(self, number: int, parts: list[list[int]], salt: str = "") -> None:
        """A request comes: its tokens are some ranges of numbers, which other requests may begin with as well.

        Args:
            number: by which it is told from other requests.
            parts: of each range the first number, how many there are, and perhaps the number of an item (an image, a
                clip) for which these tokens stand.
            salt: its salt; "" for none.
        """
        name = f"q{number}"
        if name in self.cases or not sum(part[1] for part in parts):
            raise Nothing
        request = self._bring(name, number, parts, salt)
        keys = f", {request.extra_keys!r}" if request.extra_keys else ""
        self.calls.append(f"{name} = Request({name!r}, [{_ranges(parts)}]{keys})")

    @operation
    def come_many(self, first: int, count: int, tokens: int, shared: int) -> None:
        """Many requests come, of some tokens of a stem and some of their own, and get slots behind what they hit."""
        requests, shared, tells = self.bring_many(first, count, tokens, shared)
        line = f"for n in range({first}, {first + count}): manager.allocate_slots({tells}, <behind its hit>)"

        def come(side: Side) -> Any:
            given = []
            for request in requests:
                pages, length = side.manager.get_computed_pages(request)
                slots = side.manager.allocate_slots(request, request.num_tokens - length, length, pages)
                given.append((hit_of((pages, length), side), page_ids_of(slots, side)))
            return given

        given = self.made("allocate_slots", line, come, lambda found, _: found, "many", *(["hit"] if shared else []))
        for request, (_, pages) in zip(requests, given.spec or [(None, None)] * count, strict=True):
            self.known[request.request_id] = request
            if pages is None:
                del self.cases[request.request_id]
            else:
                self.granted(request.request_id, request.num_tokens)

    def bring_many(self, first: int, count: int, tokens: int, shared: int) -> tuple[list[Request], int, str]:
        """Many requests come; see `come_many`.

        Returns:
            The requests, the number of tokens that they share, and how a report shows one of them.
        """
        if any(f"m{first + n}" in self.cases for n in range(count)) or count < 1:
            raise Nothing
        shared = min(shared, self.world.max_model_len - 1)
        tokens = min(tokens, self.world.max_model_len - shared)
        starts = {n: (10_000 + n) * 10_000 for n in range(first, first + count)}
        requests = [self._bring(f"m{n}", n, [[STEM, shared], [start, tokens]], "") for n, start in starts.items()]
        return requests, shared, f"<{shared} tokens from {STEM} on, {tokens} of its own>"

    @operation
    def look_up(self, name: str) -> Both:
        """Looks a request up."""
        return self.found(self.case_of(name).request, name)

    def found(self, request: Request, name: str, *features: str) -> Both:
        """Looks a request up; returns what each side goes on from."""
        found = self.made(
            "get_computed_pages",
            f"manager.get_computed_pages({name})",
            lambda side: side.manager.get_computed_pages(request),
            hit_of,
            *features,
        )
        if not found.refused:
            self.known[request.request_id] = request
            self.session.hits += bool(found.spec[1])
        return found

    @operation
    def mirror(self, name: str, length: int = 0) -> None:
        """Looks up another request with the tokens of a live one, or the first of them, and one more.

        Nothing else is read before.

        Args:
            name: the live request.
            length: the number of its first tokens; 0 for all.
        """
        case = self.case_of(name)
        tokens = [int(token) for token in case.request.all_token_ids][: length or None]
        shadow = Request("shadow", [*tokens, 7], case.request.extra_keys)
        self.found(shadow, f"Request('shadow', [*<{len(tokens)} tokens of {name}>, 7])", "mirror")

    @operation
    def admit(self, name: str, new: int, hits: bool, lookahead: int, delay: bool) -> None:
        """A waiting request is given slots for some tokens, or for all (0), perhaps behind what a look-up finds."""
        case = self.case_of(name)
        if case.live or case.flights:
            raise Nothing
        found = self.look_up(name) if hits else None
        start = found.spec[1] if found is not None else 0
        case.request.num_computed_tokens = 0
        left = case.request.num_tokens - start
        self.allocate(name, start, min(new or left, left), found, lookahead, delay)

    @operation
    def together(self, names: list[str], new: int, delay: bool) -> None:
        """Waiting requests are admitted in one step: all are looked up before the first of them is given slots.

        Args:
            names: the requests, in the order in which they are given slots.
            new: tokens for each, or all (0).
            delay: whether pages are published late.
        """
        waiting = [name for name in names if (case := self.cases.get(name)) and not case.live and not case.flights]
        if len(waiting) < 2:
            raise Nothing
        found = {name: self.look_up(name) for name in waiting}
        for place, name in enumerate(waiting):
            request, start = self.cases[name].request, found[name].spec[1]
            request.num_computed_tokens = 0
            left = request.num_tokens - start
            self.allocate(name, start, min(new or left, left), found[name], 0, delay, *(["together"] if place else []))

    @operation
    def go_on(self, name: str, new: int, lookahead: int, delay: bool) -> None:
        """A live request goes on: with what is left of its prompt, with tokens that it just got, or with drafts."""
        case = self.case_of(name, live=True)
        computed = min(case.given, case.request.num_tokens)
        if computed == self.world.max_model_len:
            raise Nothing
        if computed == case.request.num_tokens:
            self.calls.append(self._grow(name, 1))
        count = min(new, self.world.max_model_len - computed)
        if self.world.has_states:
            count = min(count, case.request.num_tokens - computed)
        if count < 1:
            raise Nothing
        features = ["rewind"] if computed < case.given else []
        case.request.num_computed_tokens = computed
        self.allocate(name, computed, count, None, lookahead, delay, *features)

    def allocate(
        self, name: str, start: int, new: int, found: Both | None, lookahead: int, delay: bool, *features: str
    ) -> None:
        """Asks for slots for a request, behind what was found of it, if anything was looked for."""
        case = self.cases[name]
        if case.live:
            self.goes_on(name, start)
        options: dict[str, Any] = {"num_lookahead_tokens": lookahead} if lookahead else {}
        options |= {"delay_cache_pages": True} if delay else {}
        shown = "".join(f", {option}={value!r}" for option, value in options.items())
        hits = f", {start}, <the pages found>" if found is not None else ""
        at = f"  [num_computed_tokens={start}]" if found is None and start else ""

        def act(side: Side) -> Any:
            given = [start, self.result_on(side, found)[0]] if found is not None else []
            return side.manager.allocate_slots(case.request, new, *given, **options)

        amid = found is not None and start % self.world.unit
        words = _shown(lookahead=lookahead, delay=delay, hit=start, amid=amid, keys=case.request.extra_keys)
        line = f"manager.allocate_slots({name}, {new}{hits}{shown}){at}"
        if self.made("allocate_slots", line, act, page_ids_of, *words, *features).spec is not None:
            self.granted(name, start + new)

    def goes_on(self, name: str, computed: int) -> None:
        """A live request is about to ask for more slots: nothing is done for it where the order of eviction is given.

        Args:
            name: the request.
            computed: its computed tokens.
        """

    def _grow(self, name: str, count: int) -> str:
        """Appends tokens to a request; returns how a report shows it."""
        case = self.cases[name]
        begin = first_token(case.number) + case.request.num_tokens
        for token in range(begin, begin + count):
            case.request.append(token)
        return f"{name} grows by [*range({begin}, {begin + count})]"

    # -- Steps of many --------------------------------------------------------------------------------------

    @operation
    def step(self, count: int, new: int, lookahead: int, tabled: bool, delay: bool, mirrored: str = "") -> None:
        """The first live requests go on in one batched step; then perhaps a shadow of one is looked up at once.

        Args:
            count: how many of them.
            new: tokens for each, or what is left of its prompt.
            lookahead: look-ahead for each.
            tabled: whether the step writes their rows itself.
            delay: whether pages are published late.
            mirrored: whose shadow is looked up before anything else is read; "" for none.
        """
        going, grown = [], []
        for name in self.running()[:count]:
            case = self.cases[name]
            computed = min(case.given, case.request.num_tokens)
            room = self.world.max_model_len - computed
            if room < 1 or (tabled and case.row < 0):
                continue
            if computed == case.request.num_tokens:
                grown.append(self._grow(name, min(new, room)))
            most = case.request.num_tokens - computed if self.world.has_states else room
            going.append((name, computed, min(new, most, room)))
        many = (
            f"# {len(grown)} of the requests grow by {new} tokens of their own each, or by as many as there is room for"
        )
        self.calls += grown if len(grown) <= 3 else [many]
        for name, computed, _ in going:
            self.goes_on(name, computed)
        if not going or not self.offers("manager", "allocate_slots_batch"):
            raise Nothing
        names, computeds, news = (list(values) for values in zip(*going, strict=True))
        rows = [self.cases[name].row for name in names]

        def act(side: Side) -> Any:
            slots = [side.manager.slot_of(name) for name in names]
            more = {"tables": side.tables, "rows": rows} if tabled else {}
            return side.manager.allocate_slots_batch(slots, computeds, news, lookahead, delay_cache_pages=delay, **more)

        of = f"the {len(names)} first" if len(names) > 3 else ", ".join(names)
        shown = ", tables=tables, rows=<theirs>" if tabled else ""
        line = f"manager.allocate_slots_batch(<slots of {of}>, <computed>, {_brief(news)}, {lookahead}"
        rewinds = any(self.cases[name].given > computed for name, computed in zip(names, computeds, strict=True))
        keys = any(self.cases[name].request.extra_keys for name in names)
        words = ["batch", *_shown(lookahead=lookahead, delay=delay, rewind=rewinds, keys=keys)]
        before, self.hurrying = self.hurrying, self.hurrying or bool(mirrored)
        try:
            batch = self.made(
                *("allocate_slots_batch", f"{line}, delay_cache_pages={delay}{shown})", act, _batch), *words
            )
            for name, computed, count_of, granted in zip(names, computeds, news, batch.spec.granted, strict=True):
                self.cases[name].request.num_computed_tokens = computed
                if granted:
                    self.cases[name].given = computed + count_of
                    if not tabled and self.cases[name].row >= 0:
                        for side in (self.spec, self.backend):
                            self.append(side, name)
        finally:
            self.hurrying = before
        if mirrored in self.cases:
            self.mirror(mirrored)

    @operation
    def commit(self) -> None:
        """The device's tables hear of all rows."""

        def act(side: Side) -> Any:
            side.tables.commit(self.rows)
            return [numbers_of(table.get_device_tensor()) for table in side.tables.page_tables]

        self.call(f"tables.commit({self.rows})", act, "TAB-4")

    @operation
    def publish(self, name: str) -> None:
        """Publishes what was delayed."""
        case = self.case_of(name, live=True)
        self.asked("cache_pages", request=name, num_computed_tokens=case.given)

    @operation
    def count_common(self, name: str) -> None:
        """Counts the pages that all live requests share."""
        self.case_of(name, live=True)
        running = self.running()
        if self.shards:
            shard_of = self.spec.manager.shard_of
            running = [other for other in running if shard_of(other) == shard_of(name)]
        self.asked("get_num_common_prefix_pages", request=name, num_scheduled_requests=len(running))

    # -- Requests go ----------------------------------------------------------------------------------------

    @operation
    def go(self, name: str, unwritten: int | None) -> None:
        """A live request goes, perhaps before its last tokens were written."""
        case = self.case_of(name)
        if not case.live and not case.flights:
            raise Nothing
        written = None if unwritten is None or not case.live else max(case.given - unwritten, 0)
        more: dict[str, Any] = {} if written is None else {"num_written": written}
        self.asked("free", "withdraw" if more else "free", request=name, **more)
        self.gone(name)

    @operation
    def go_many(self, count: int, last: bool) -> None:
        """Some live requests go, those that came first or last; they do not come back."""
        names = self.running()[-count:] if last else self.running()[:count]
        if not names:
            raise Nothing
        requests = [self.cases[name].request for name in names]
        self.made(
            *(
                "free",
                f"for request in <the {len(names)} {'last' if last else 'first'} that run>: manager.free(request)",
            ),
            *(lambda side: [list(side.manager.free(request) or ()) for request in requests], lambda held, _: held),
        )
        for name in names:
            self.gone(name)
            del self.cases[name]

    # -- What is cached -------------------------------------------------------------------------------------

    @operation
    def evict(self, first: int, count: int) -> None:
        """Drops the hashes of some consecutive pages."""
        pages = [page for page in range(first, first + count) if page < self.world.num_pages]
        number, row = first % (self.shards or 1), MANAGER["evict_pages"]
        of = f"manager.shards[{number}]" if self.shards else "manager"
        self.session.note_drawn([f"{MANAGER.name}.{row.name}"])
        self.call(
            f"{of}.page_pool.evict_pages(range({first}, {first + len(pages)}))",
            lambda side: side.shards[number].pool.evict_pages(self.to_evict(side, number, pages)),
            row.clause,
            lambda *_: None,
            row.charges_by_field,
        )
        self.met.note(["evict", *(["shards"] if self.shards else [])], len(self._trace))

    def to_evict(self, side: Side, shard: int, pages: list[int]) -> list[int]:
        """The pages of a shard whose hashes are to be dropped on a side."""
        del side, shard
        return pages

    @operation
    def reset(self) -> None:
        """Forgets all prefixes, if no page is in use."""
        done = self.asked("reset_prefix_cache")
        if done.spec:
            self.met.note(["reset"], len(self._trace))

    @operation
    def drain(self) -> None:
        """Takes every free page, some one by one, and gives them back: in the order in which they were to be taken."""
        for number, free in enumerate(self.num_free(self.spec)):
            self.drain_shard(number, free, min(free, _ALONE))

    def drain_shard(self, number: int, free: int, alone: int) -> None:
        """Takes the free pages of a shard, some alone, and gives them back."""

        def act(side: Side) -> list[int]:
            pool = side.shards[number].pool
            taken = [page for _ in range(alone) for page in pool.get_new_pages(1)]
            taken += pool.get_new_pages(free - alone)
            pool.free_pages(taken)
            return [int(page.page_id) for page in taken]

        line = f"pool.free_pages(<{alone} pages taken one by one> + pool.get_new_pages({free - alone}))"
        of = f"  # of shard {number}" if self.shards else ""
        self.call(f"{line}{of}", act, *self.drained())

    def drained(self) -> tuple[str, Callable[[list[int], Side], object]]:
        """The clause by which all free pages are compared, and what is compared of their order: all of it."""
        return order_clause(self.options), same

    @operation
    def pin(self, name: str, tokens: int | None) -> None:
        """Pins what is cached of a request, or of its first tokens."""

        def normal(pin: Any, side: Side) -> object:
            return pin and (int(pin.pin_id), int(pin.num_tokens), page_ids_of(pin.pages, side))

        pinned = self.asked("pin_prefix", "pin", normal=normal, request=name, num_tokens=tokens)
        self.pins |= {int(pinned.spec.pin_id)} if pinned.spec else set()

    @operation
    def unpin(self, pin: int) -> None:
        """Gives a pin up; one that there is not is refused."""
        self.asked("unpin_prefix", pin_id=pin)
        self.pins.discard(pin)

    @operation
    def rank(self, name: str, priority: int, expires_at: float | None) -> None:
        """Gives what is cached of a request a priority."""
        self.asked("set_prefix_priority", "priority", request=name, priority=priority, expires_at=expires_at)

    @operation
    def rank_often(self, name: str, priority: int, times: int, expires_at: float | None) -> None:
        """Raises the priority of what is cached of a request by one, again and again, as who counts hits does it."""
        request = self.case_of(name).request
        ends = [None if expires_at is None else expires_at + n for n in range(times)]
        self.made(
            "set_prefix_priority",
            f"for n in range({times}): manager.set_prefix_priority({name}, {priority} + n, expires_at={ends[:1]} + n)",
            lambda side: [
                side.manager.set_prefix_priority(request, priority + n, expires_at=end) for n, end in enumerate(ends)
            ],
            lambda counts, _: [int(tokens) for tokens in counts],
            "priority",
        )

    @operation
    def pass_time(self, now: float) -> None:
        """Time goes on; what ends then has no priority any more. It is refused where it would go back."""
        self.asked("advance_time", now=now)

    @operation
    def take_copies(self) -> None:
        """The copies of states that are to be run before the step."""
        given: list[dict[str, Any]] = [{"shard": number} for number in range(self.shards)]
        for of_shard in given or [{}]:
            self.asked("take_page_copies", **of_shard)

    @operation
    def take_events(self) -> None:
        """What was told since: a batch of it is followed at a time."""

        def act(side: Side) -> Any:
            new = list(side.manager.take_events())
            side.told.extend(map(event, new))
            side.follower.apply(new)
            return list(map(event, new))

        self.made("take_events", "manager.take_events()", act, lambda told, _: told, "events")

    @operation
    def look(self) -> None:
        """Looks at everything."""
        self.call("manager.usage", lambda side: round(float(side.manager.usage), 9), "POOL-10")


def _brief(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else str(list(values)) if len(values) < 9 else "<theirs>"


def _batch(batch: Any, _: Side) -> object:
    arrays = [batch.granted, *batch.page_ids, *batch.offsets]
    return [(str(array.dtype), array.tolist()) for array in arrays], int(batch.num_granted)
