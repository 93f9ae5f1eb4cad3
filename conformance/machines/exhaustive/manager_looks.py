"""What can be looked at in a state of a small world of managers: look-ups, counts, keys, and what is refused."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from ...calls.datum import Call, Pages, Ref, Saying
from ..manager_admission import Admission
from ..manager_base import MANAGER_REF
from ..properties import step
from .ways import Move, Way
from .world import SmallWorld

__all__ = ["ManagerLooks"]

_PROBE = "p"
"""The id of a request that is only looked up."""


class ManagerLooks(SmallWorld, Admission):
    """What changes nothing: calls, and look-ups of requests that come for it."""

    def in_order(self) -> tuple[list[str], tuple[int, int]]:
        """The requests that are known, and the two tokens, in an order that no name changes."""
        raise NotImplementedError

    def on_manager(self, method: str, **arguments: Any) -> Call:
        """A call on the managers."""
        return self.call_of(method, MANAGER_REF, **arguments)

    def looks(self) -> list[Move]:
        """Everything that can be looked up or counted; calls that do nothing; calls with one fault.

        Faults that depend on nothing but one request are tried where there is no other.
        """
        names, tokens = self.in_order()
        live = [name for name in names if self.cases[name].live]
        gone = [name for name in names if name not in live]
        alone = len(names) < 2
        looks: list[Move] = []
        if self.offers("manager", "req_to_page_hashes"):
            looks.append(self.on_manager("req_to_page_hashes"))
        looks += [Way("find", (name,)) for name in (*gone, *live)]
        for name in live:
            looks += self._around_live(name, alone)
        looks += [self.on_manager("free", request=Ref(name)) for name in gone]
        if any(self.spec.pages[page].ref_cnt for page in self.spec.pages if page) or not any(
            view.page_hash for view in self.spec.pages.values()
        ):
            looks.append(self.on_manager("reset_prefix_cache"))
        looks += [Way("probe_for", (prompt,)) for prompt in self._probes(tokens)]
        if alone:
            looks += [Way("hit_wrongly", (page,)) for page in self._wrong_hits()]
        return looks

    def _around_live(self, name: str, alone: bool) -> Iterator[Call]:
        """Counts, publishing that does nothing or is refused, computed tokens that cannot be, requests of that id."""
        case, own = self.cases[name], Ref(name)
        stranger = self.namesake(name, case.request.extra_keys)
        counts = self.offers("manager", "get_num_common_prefix_pages")

        def going_on(computed: int, new: int) -> Call:
            request = Saying(own, (("num_computed_tokens", computed),))
            return self.on_manager("allocate_slots", request=request, num_new_tokens=new)

        def counting(count: int) -> Call:
            return self.on_manager("get_num_common_prefix_pages", request=own, num_scheduled_requests=count)

        if counts:
            yield counting(len(self.running()))
        if self.offers("manager", "cache_pages"):
            for count in (0, case.given + 1):
                yield self.on_manager("cache_pages", request=own, num_computed_tokens=count)
        least = case.given if self.world.has_states else max(case.least, int(case.request.num_computed_tokens))
        yield going_on(least, self.max_model_len - least + 1)
        yield going_on(case.slots + 1, 1)
        if case.least:
            yield going_on(case.least - 1, 1)
        yield self.on_manager("get_computed_pages", request=stranger)
        if alone:
            yield going_on(least, 0)
            yield self.on_manager("free", request=self.namesake(name))
            yield self.on_manager("allocate_slots", request=stranger, num_new_tokens=1)
            if counts:
                yield counting(2)
            if self.free_takes_written():
                yield self.on_manager("free", request=own, num_written=-1)

    def _wrong_hits(self) -> Iterator[int]:
        """The null page, and a page without a hash: nobody's prefix."""
        yield 0
        yield from [page for page, view in self.spec.pages.items() if page and view.page_hash is None][:1]

    def _probes(self, tokens: tuple[int, int]) -> list[tuple[int, ...]]:
        """Requests that find whatever can be found: a hit leaves one token out."""
        if not any(view.page_hash for view in self.spec.pages.values()):
            return [(0,) * self.max_model_len]
        units = (self.max_model_len - 1) // self.unit * self.unit
        return [(*prefix, 0) for prefix in product(tokens, repeat=units)]

    @step()
    def probe_for(self, tokens: tuple[int, ...]) -> None:
        """Looks up a request that nobody has seen before (MAN-1)."""
        self.bring(_PROBE, list(tokens))
        self.look_up(_PROBE)

    @step()
    def hit_wrongly(self, page: int) -> None:
        """A page is handed in as a hit that holds nothing of the request's (MAN-2)."""
        tokens = [0] * min(self.unit + 1, self.max_model_len)
        self.bring(_PROBE, tokens)

        pages = [[Ref("pages", (page,))] * (self.unit // group.page_size) for group in self.world.groups]
        hits = {"num_new_computed_tokens": self.unit, "new_computed_pages": Pages(pages)}
        self.call_manager("allocate_slots", request=Ref(_PROBE), num_new_tokens=1, **hits)

    @step()
    def find(self, name: str) -> None:
        """Looks up a request, waiting or live (MAN-1)."""
        self.look_up(name)
