"""What the steps of the manager machines share: the two managers, what they show, look-ups and slots."""

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from kvproof.spec.declarations import EngineRequestStatus

from ..backends.capabilities import ESSENTIALS
from ..backends.loading import takes_parameter
from ..calls.datum import Call, GoneError, Pages, Prompt, Ref, Saying, resolve, said_of, written
from ..calls.deviation import attempt
from ..calls.interfaces import REQUEST
from ..calls.kinds import HASHES, PLAIN
from ..calls.manager import COUNTS, HIT_AGAIN, MANAGER, PAGE_LISTS
from ..calls.method import Method, Table
from ..calls.pool import POOL, Views
from ..calls.spelling import LISTED
from .base import Both, Field, Side
from .calling import Calling
from .ghost import Ghost
from .hash import weak
from .manager_blame import Before, Case, ManagerBlame
from .pool_state import FOLLOWED, event_fields, order_clause, pin_fields, pool_fields, whole_fields
from .worlds import Declared, World

__all__ = ["ASKED", "MANAGER_REF", "POOL_REF", "ManagerMachine"]

MANAGER_REF, POOL_REF = Ref("manager"), Ref("pool")


ASKED = tuple(row.name for row in MANAGER if row.reads and tuple(row.arguments) == ("request",))
"""The methods that ask something of a request, and change nothing."""


class ManagerMachine(ManagerBlame, Calling):
    """Two managers side by side. A side has ``manager``, its ``pool``, ``pages`` by id, and the requests by their ids.

    Attributes:
        made: the class of the managers.
        first: its arguments before the number of pages.
        flags: whether they cache, and whether there is an Eagle model, as far as the backend's class takes that.
    """

    needs: ClassVar[tuple[str, ...]] = (ESSENTIALS["CacheManager"][0], "CachePages")
    tables: ClassVar[tuple[Table, ...]] = (MANAGER, PAGE_LISTS, REQUEST)
    held_as: ClassVar[Mapping[str, str]] = {"shards": "manager"}
    made: ClassVar[str] = "CacheManager"
    first: tuple[int, ...] = ()
    flags: tuple[bool, ...]
    always = frozenset(
        {"R1", "R2", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-8", "POOL-10", "HASH-1", "HASH-2"}
        | {"HASH-3", "EVICT-1", "MAN-1", "MAN-2", "MAN-6", "MAN-12", "MAN-14", "RET-2", "RET-3"}
    )

    def build_managers(self, world: World) -> None:
        """Builds both managers, with those options that the backend's constructor knows."""
        wanted_groups = world.groups
        world = world.within(self.backend.names)
        if world.groups != wanted_groups:
            self.lacks("groups")
        self.flags = self.backend.names.flags(self.made, *world.flags)
        if not self.flags:
            world = replace(world, caching=True)
        if self.lacks("iterables"):
            world = replace(world, spellings=tuple(known for known in world.spellings if known in LISTED))
        wanted = {"hash_seed": b"kvproof", **world.options}
        options = self.options_taken(self.made, wanted)
        self.world, self.options, self.cases, self.ghost = world, options, {}, Ghost(world.groups)
        call = self.built(0)
        line, of_spec = f"manager = {self.construction()}", self.things(self.built_for_spec(call))
        self.build_things(line, "MAN-2", self.things(call), of_spec)
        self.watch(*self.state_fields())

    def built_for_spec(self, call: Call) -> Call:
        """The call that constructs the specification's manager: it goes by the backend's interval (RET-1)."""
        if self.takes_interval():
            return call
        # a backend that takes none shows which it goes by; one that shows none keeps all pages, as all once did
        other = attempt(lambda: self.perform(self.backend, call, self.row_of_thing(call))).value
        shown = getattr(next(iter(getattr(other, "shards", [])), other), "retention_interval", None)
        return call.given(retention_interval=shown)

    def takes_interval(self) -> bool:
        """Whether the backend's manager can be told which lengths to keep (RET-1)."""
        return self.backend.names.accepts(self.made, "retention_interval")

    def construction(self) -> str:
        """The call of the constructor as a report shows it."""
        world = self.world
        shown = "".join(f", {name}={getattr(value, '__name__', repr(value))}" for name, value in self.options.items())
        numbers = ", ".join(map(str, (*self.first, world.num_pages)))
        line = f"{numbers}, [{', '.join(map(str, world.groups))}], max_model_len={world.max_model_len}"
        named = "".join(f", {name}={flag}" for name, flag in zip(("caching", "use_eagle"), self.flags, strict=False))
        return f"{self.made}({line}{named}{shown})"

    def built(self, number: int) -> Call:
        """The call of a number that constructs such a manager."""
        world = self.world
        given: dict[str, Any] = dict(zip(("num_shards",), self.first, strict=False))
        given["num_pages"] = world.num_pages
        given["kv_cache_groups"] = [Declared(group, place) for place, group in enumerate(world.groups)]
        given["max_model_len"] = world.max_model_len
        given |= dict(zip(("enable_caching", "use_eagle"), self.flags, strict=False))
        return Call(None, self.made, given | self.options, number)

    def row_of_thing(self, call: Call) -> Method:
        """See `Calling.row_of_thing`: a manager's flags go by position, as a backend may have other names for them."""
        row = super().row_of_thing(call)
        if call.method != self.made:
            return row
        flags = dict.fromkeys(("enable_caching", "use_eagle"), PLAIN)
        return replace(row, arguments={**row.arguments, **flags}, by_name=())

    def things(self, manager: Call) -> dict[str, Any]:
        """What a side has by which name, where a call makes the manager; see `Calling.build_things`."""
        made = {"manager": manager, "pool": MANAGER_REF.to(".page_pool"), "pages": self.views()}
        return {**made, **FOLLOWED} if "enable_events" in self.options else made

    def views(self) -> Views:
        """The views of a pool's pages."""
        return Views(POOL_REF, not self.lacks("queue"))

    def state_fields(self) -> list[Field]:
        """What the managers show."""
        weakly = self.options.get("hash_function") is weak
        lacks = frozenset(filter(self.lacks, ("queue", "keys")))
        order = order_clause(self.options)
        fields = list(pool_fields("hash_seed" in self.options, weakly, lacks, order))
        for place, shows in enumerate(fields):
            if shows.name in HASHES:
                also = (*self.of_states, *self.of_parts, *self.amid)
                fields[place] = replace(shows, blame=self.blame_published, also=also)
            elif shows.name == "ref_cnt":
                fields[place] = replace(shows, blame=self.blame_counts, also=(*self.amid, *self.of_states))
            elif shows.name == "free pages":
                fields[place] = replace(shows, blame=self.blame_order, also=(order, *self.amid, *self.of_parts))
        also = ("MAN-2", *self.of_states, *self.own("MAN-8"))
        usage = Field.of("usage of the manager", aside=True)
        return [
            Field.of("pages of requests", self.cases, blame=self.blame_pages, also=also),
            *fields,
            *((usage,) if self.offers("manager", "usage") else ()),
            *event_fields(self.options),
            *(pin_fields() if "max_pinned_pages" in self.options else ()),
            *whole_fields(self),
        ]

    # -- The world ----------------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """The most tokens of a request."""
        return self.world.max_model_len

    @property
    def caching(self) -> bool:
        """Whether prefixes are cached and found."""
        return self.world.caching and bool(self.world.groups)

    @property
    def num_free(self) -> int:
        """How many pages are free."""
        return int(self.spec.pool.get_num_free_pages())

    def page_numbers(self) -> list[int]:
        """The ids of all pages, the null page's first."""
        return sorted(self.spec.pages)

    def cached_pages(self) -> list[int]:
        """The pages that have a hash."""
        return [page for page in self.page_numbers()[1:] if self.spec.pages[page].page_hash is not None]

    # -- Calls --------------------------------------------------------------------------------------------

    @classmethod
    def row_of_call(cls, call: Call) -> tuple[Table, Method]:
        """See `Calling.row_of_call`."""
        if call.about == HIT_AGAIN.clause:
            return MANAGER, HIT_AGAIN
        if call.target is None or call.target == Ref(cls.made):
            return cls.row_of(call.method)
        held = {cls.held_as.get(table.name, table.name): table for table in (POOL, *reversed(cls.tables))}
        table = PAGE_LISTS if isinstance(call.target.of, int) else held.get(call.target.of, REQUEST)
        return table, table[call.method]

    def call_manager(self, method: str, **arguments: Any) -> Both:
        """Makes a call on the managers."""
        return self.make_call(self.call_of(method, MANAGER_REF, **arguments))

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: what an engine does with a request of its own calls no manager."""
        table, row = self.row_of_call(call)
        if table is REQUEST:
            return self.change(call, row)
        name, hits = self.name_in(call), call.arguments.get("num_new_computed_tokens")
        self.was = Before(
            self.held(name) if row.name in ("free", "swap_out") and name else [],
            self.released_by(name, call),
            withdraws="num_written" in call.arguments,
            hits_amid=isinstance(hits, int | np.integer) and bool(self.amid) and hits % self.unit != 0,
        )
        said = self.said_before(call)
        both = super().make_call(call)
        if both.refused:
            self.say_again(said)
        return both

    def repeat_call(self, call: Call) -> None:
        """See `Calling.repeat_call`: a call that names what there is not any more is left out."""
        with suppress(GoneError):
            super().repeat_call(call)

    def fitting(self, row: Method, call: Call) -> dict[str, Any]:
        """See `Calling.fitting`: a call for slots goes on from where its request is now, and ends where it did."""
        given, name = super().fitting(row, call), self.name_in(call)
        asking, new = given.get("request"), given.get("num_new_tokens")
        if row.name != "allocate_slots" or name not in self.cases or not isinstance(asking, Saying):
            return given
        said = dict(asking.said)
        computed = said.get("num_computed_tokens")
        if isinstance(computed, int | np.integer) and isinstance(new, int | np.integer):
            said["num_computed_tokens"], new = self.fitting_counts(name, computed, new)
        return given | {"request": replace(asking, said=tuple(said.items())), "num_new_tokens": new}

    def fitting_counts(self, name: str, computed: Any, new: Any) -> tuple[Any, Any]:
        """Computed tokens that a request can have, next to some that it had once, and new ones up to the same end."""
        case, least, most = self.cases[name], 0, 0
        if case.live:
            least, most = (case.given, case.given) if self.world.has_states else (case.least, case.slots)
        nearest = min(max(int(computed), least), most)
        return (computed, new) if nearest == computed else (nearest, max(int(computed) + int(new) - nearest, 1))

    def show_target(self, ref: Ref) -> str:
        """See `Calling.show_target`."""
        return self.show(ref) if isinstance(ref.of, int) else str(ref)

    def name_in(self, call: Call) -> str:
        """The id of the request that a call is about; "" if it is about none, or about another one with its id."""
        request = call.arguments.get("request")
        ref = request.request if isinstance(request, Saying) else request
        return ref.of if isinstance(ref, Ref) and isinstance(ref.of, str) else ""

    def said_before(self, call: Call) -> list[tuple[Any, str, Any]]:
        """What the engine said of its requests before a call that says something else."""
        return [
            (self.cases[name].request, attribute, getattr(self.cases[name].request, attribute))
            for name in (self.name_in(call),)
            for attribute, _ in said_of(call.arguments.get("request"))
            if name in self.cases
        ]

    @staticmethod
    def say_again(said: list[tuple[Any, str, Any]]) -> None:
        """The requests say what they said before a call that was refused; see `said_before`."""
        for request, attribute, value in said:
            setattr(request, attribute, value)

    def change(self, call: Call, row: Method) -> Both:
        """What an engine does with a request of its own: both sides have the same one."""
        if not self._operating:
            self.note_call(call)
        if row.form == "build":
            self.brought(call.arguments["prompt"])
            return Both()
        assert call.target is not None, "it is called on a request"
        name, (value,) = str(call.target.of), call.arguments.values()
        if name not in self.cases:
            raise self.left_out()
        if row.name == "append":
            self.cases[name].request.append(value)
            self.calls.append(f"{name} grows by [{value}]")
        else:
            setattr(self.cases[name].request, row.name, value)
            self.calls.append(f"{name}.{row.name} = {getattr(value, 'name', repr(value))}")
        return Both()

    def brought(self, prompt: Prompt) -> None:
        """Notes that a request comes under an id that is not live."""
        name = prompt.request_id
        earlier = self.cases.get(name)
        if not prompt.tokens or (earlier is not None and earlier.live):
            raise self.left_out()
        self.calls.append(f"{name} = {written(prompt)}")
        request = resolve(prompt, self.spec)
        self.cases[name] = Case(request)
        for side in (self.spec, self.backend):
            side.put({name: request})
        if earlier is not None:
            self.cases[name].earlier = [*earlier.earlier, (earlier.tokens, earlier.request.extra_keys)]

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """See `Calling.perform`: no page counts as withdrawn where no call asked for the holders."""
        given = super().perform(side, call, row)
        return [] if given is None and row.name == "free" and "num_written" not in call.arguments else given

    def charge_of(self, row: Method, call: Call) -> Any:
        """See `Calling.charge_of`: without slots only what was given back has changed (MAN-2).

        Where pages without a hash are freed to the front, what was withdrawn shows in the order of the free ones.
        """
        charges = dict(self.charges_of(row, call))
        if row.name == "free" and self.options.get("unhashed_first"):
            return charges | {"free pages": charges["hashed pages"]}
        if row.name != "allocate_slots" or not self.was.released:
            return charges
        giving = charges | dict.fromkeys(("pages of requests", *COUNTS), self.was.released[0])
        return lambda pages: charges if pages is None else giving

    def blame_of(self, row: Method, call: Call) -> tuple[Callable[[Any, Any], str] | None, tuple[str, ...]]:
        """See `Calling.blame_of`: what the pages hold says it."""
        name = self.name_in(call)
        if row.name == "take_page_copies" and self.amid:
            return lambda *_: "MAN-17", ("MAN-17", "MAN-13")
        if not name or call.about:
            return super().blame_of(row, call)
        if row.name in ("get_computed_pages", *ASKED):
            also = ("R2", "MAN-6", "HASH-2", *self.own("MAN-7", "MAN-9", "MAN-17"), *self.of_states)
            blame = self.blame_hit if row.name == "get_computed_pages" else functools.partial(self.blame_asked, row)
            return functools.partial(blame, self.cases[name]), also
        if row.name == "allocate_slots":
            released = self.was.released
            blame = functools.partial(self.blame_allocation, name, released=released)
            return blame, (*self.of_states, *self.amid, *released)
        return super().blame_of(row, call)

    def learn(self, call: Call, both: Both) -> None:
        """See `Calling.learn`: what the request's pages hold, and how far it has come."""
        note = getattr(self, f"note_{call.method}", None)
        name = self.name_in(call)
        if note is not None and (name or "request" not in self.row_of_call(call)[1].arguments):
            note(name, call, both)

    # -- Requests ---------------------------------------------------------------------------------------

    def look_up(self, name: str) -> Both:
        """Looks a request up on both sides; nothing changes in the pool, and what is found is the request's own.

        All that can be asked of a request without changing anything is asked first: that it does not is seen then.
        """
        for method in ASKED:
            if self.offers("manager", method):
                self.call_manager(method, request=Ref(name))
        return self.call_manager("get_computed_pages", request=Ref(name))

    def blame_asked(self, row: Method, case: Case, *_: Any) -> str:
        """The clause of a wrong answer about a request: that of its look-up where that is wrong, too."""
        sides = (self.spec, self.backend)
        found = [attempt(functools.partial(side.manager.get_computed_pages, case.request)) for side in sides]
        if any(outcome.error is not None for outcome in found):
            return row.clause
        expected, observed = (self.found_pages(outcome.value, side) for outcome, side in zip(found, sides, strict=True))
        return row.clause if expected == observed else self.blame_hit(case, expected, observed)

    def note_get_computed_pages(self, name: str, call: Call, found: Both) -> None:
        """Notes what a look-up found."""
        case = self.cases[name]
        if call.about:
            return
        if found.spec[1]:
            self.session.hits += 1
            self.judge(case, found)
        case.found, case.found_by = found, call.number

    def found_pages(self, found: Any, side: Any) -> Any:
        """A look-up's result as it is compared."""
        return MANAGER["get_computed_pages"].result.plain(found, side)

    def released_by(self, name: str, call: Call) -> tuple[str, ...]:
        """The clauses by which a request gives pages back in a call."""
        if call.method != "allocate_slots" or name not in self.cases:
            return ()
        said = dict(said_of(call.arguments["request"]))
        return self.giving_back(name, said.get("num_computed_tokens", self.cases[name].request.num_computed_tokens))

    def judge(self, case: Case, found: Both) -> None:
        """Holds a hit against what the pages hold, which no hash function and no key is asked about (R2)."""
        pages, length = self.found_pages(found.backend, self.backend)
        clause = self.flaw_in_content(case, pages) or self.flaw_in_shape(case, pages, length)
        if clause:
            self.differ(clause, "pages that hold the request's own prefix", f"{pages}, {length} tokens")

    # -- Slots ------------------------------------------------------------------------------------------

    def allocate(self, name: str, new: Any, hits: int | None = None, **options: Any) -> Both:
        """Allocates slots on both sides.

        Args:
            name: the request's id.
            new: tokens to be computed.
            hits: how many tokens of what its last look-up found are handed back; None to hand nothing back.
            options: the other arguments, those left out that the backend's manager does not take.
        """
        request = Saying(Ref(name), (("num_computed_tokens", self.cases[name].request.num_computed_tokens),))
        given = {} if hits is None else self.hits_of(name, hits)
        taken = {option: value for option, value in options.items() if self.takes(option)}
        return self.call_manager("allocate_slots", request=request, num_new_tokens=new, **given, **taken)

    def hits_of(self, name: str, tokens: int) -> dict[str, Any]:
        """The first tokens of what a request's last look-up found, and their pages, as arguments of a call.

        Where a window or a state of the shorter prefix is not among the pages, they are no hit.
        """
        case = self.cases[name]
        if case.found is None:
            return {}
        pages, length = Ref(case.found_by, (0,)), int(case.found.spec[1])
        if tokens >= length:
            return {"num_new_computed_tokens": length, "new_computed_pages": pages}
        ends = enumerate(tokens // group.page_size for group in self.world.groups)
        first = tuple(pages.to(".pages", number, f":{end}") for number, end in ends)
        return {"num_new_computed_tokens": tokens, "new_computed_pages": Pages(first)}

    def note_allocate_slots(self, name: str, call: Call, allocated: Both) -> None:
        """Notes whether a request was given slots."""
        case, given = self.cases[name], call.arguments
        computed, found = case.request.num_computed_tokens, given.get("num_new_computed_tokens", 0)
        if allocated.spec is not None:
            self.grant(name, int(computed), int(found), int(given["num_new_tokens"]), self.lookahead_of(call))
        elif case.live:
            self.write(name, int(computed))  # the drafts that were accepted are, with new slots or without
        case.told = int(computed)

    @staticmethod
    def lookahead_of(call: Call) -> int:
        """The look-ahead of a call that asks for slots."""
        return int(call.arguments.get("num_lookahead_tokens", 0))

    def takes(self, option: str) -> bool:
        """Whether the backend's ``allocate_slots`` takes an option."""
        taken = takes_parameter(self.backend.manager.allocate_slots, option)
        if not taken:
            self.session.lacks.add(f"manager.allocate_slots({option})")
        return taken

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """Notes that a request was given slots, and holds what its step reads against what the pages hold (R2)."""
        case = self.cases[name]
        if not case.live:
            case.given = case.slots = 0
            case.hits = case.written = case.computed = found
            case.void = False
            case.request.status = EngineRequestStatus.RUNNING
        case.live = True
        start, promised = computed + found, computed + found + new
        case.given = max(case.given, promised)
        case.slots = max(case.slots, min(promised + lookahead, self.max_model_len))
        self.write(name, start)  # a draft may have been accepted, so that what it wrote is known now
        pages = self.held(name)
        wrong = [] if case.void else self.ghost.unread(pages, start, case.request)
        self.compared("R2")
        if wrong:
            self.differ("R2", f"{name} reads its own pages", f"others at (group, place) {wrong} of {pages}")
        self.write(name, promised)
        case.computed = start

    def write(self, name: str, end: int, held: list[list[int]] | None = None) -> None:
        """Notes that a request's pages hold its tokens up to ``end``, as far as they are known.

        Args:
            name: the request's id.
            end: the number of tokens.
            held: the pages, where it does not hold them any more.
        """
        case = self.cases[name]
        if end > case.written or not self.world.has_states:
            case.written = max(case.written, min(end, case.request.num_tokens))
            self.ghost.write(held or self.held(name), case.computed, case.written, case.request)
