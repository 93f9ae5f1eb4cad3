"""What can be looked at in a state of a small world of managers: look-ups, counts, keys, and what is refused."""

from collections.abc import Iterator
from itertools import product

from kvproof.spec.declarations import EngineRequestStatus

from ...calls.datum import Pages, Ref, Saying
from ..manager_admission import Admission
from ..properties import step
from .ways import Way
from .world import SmallWorld

__all__ = ["ManagerLooks"]

_PROBE = "p"
"""The id of a request that is only looked up."""


class ManagerLooks(SmallWorld, Admission):
    """The ways that change nothing."""

    def in_order(self) -> tuple[list[str], tuple[int, int]]:
        """The requests that are known, and the two tokens, in an order that no name changes."""
        raise NotImplementedError

    def looks(self) -> list[Way]:
        """Everything that can be looked up or counted; calls that do nothing; calls with one fault.

        Faults that depend on nothing but one request are tried where there is no other.
        """
        names, tokens = self.in_order()
        live = [name for name in names if self.cases[name].live]
        gone = [name for name in names if name not in live]
        alone = len(names) < 2
        ways = [Way("read_keys_now")] if self.offers("manager", "req_to_page_hashes") else []
        ways += [Way("find", (name,)) for name in (*gone, *live)]
        for name in live:
            ways += self._around_live(name, alone)
        ways += [Way("free_again", (name,)) for name in gone]
        if any(self.spec.pages[page].ref_cnt for page in self.spec.pages if page) or not any(
            view.page_hash for view in self.spec.pages.values()
        ):
            ways.append(Way("reset"))
        ways += [Way("probe_for", (prompt,)) for prompt in self._probes(tokens)]
        if alone:
            ways += [Way("hit_wrongly", (page,)) for page in self._wrong_hits()]
        return ways

    def _around_live(self, name: str, alone: bool) -> Iterator[Way]:
        case = self.cases[name]
        if self.offers("manager", "get_num_common_prefix_pages"):
            yield Way("count_common", (name, len(self.running())))
        if self.offers("manager", "cache_pages"):
            yield Way("publish", (name, 0))
            yield Way("publish", (name, case.given + 1))
        least = case.given if self.world.has_states else max(case.least, int(case.request.num_computed_tokens))
        yield Way("go_wrongly", (name, least, self.max_model_len - least + 1))
        yield Way("go_wrongly", (name, case.slots + 1, 1))
        if case.least:
            yield Way("go_wrongly", (name, case.least - 1, 1))
        yield Way("come_under", (name,))
        if alone:
            yield Way("go_wrongly", (name, least, 0))
            yield Way("free_another", (name,))
            yield Way("run_under", (name,))
            if self.offers("manager", "get_num_common_prefix_pages"):
                yield Way("count_common", (name, 2))
            if self.free_takes_written():
                yield Way("free_request_wrongly", (name,))

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
    def read_keys_now(self) -> None:
        """The keys of the requests that are known (HASH-3)."""
        self.call_manager("req_to_page_hashes")

    @step()
    def probe_for(self, tokens: tuple[int, ...]) -> None:
        """Looks up a request that nobody has seen before (MAN-1)."""
        self.bring(_PROBE, list(tokens))
        self.look_up(_PROBE)

    @step("MAN-10")
    def count_common(self, name: str, count: int) -> None:
        """Counts the pages that all running requests share, told the right number of them or a wrong one (MAN-10)."""
        self.call_manager("get_num_common_prefix_pages", request=Ref(name), num_scheduled_requests=count)

    @step("MAN-8")
    def go_wrongly(self, name: str, computed: int, new: int) -> None:
        """A live request asks for no token or too many, or tells of computed tokens that it cannot have (MAN-8)."""
        self.call_manager(
            "allocate_slots", request=Saying(Ref(name), (("num_computed_tokens", computed),)), num_new_tokens=new
        )

    @step()
    def come_under(self, name: str) -> None:
        """Another request comes under the id of a live one (MAN-6)."""
        self.call_manager("get_computed_pages", request=self.namesake(name, self.cases[name].request.extra_keys))

    @step()
    def run_under(self, name: str) -> None:
        """Another request asks for slots under the id of a live one (MAN-6)."""
        stranger = self.namesake(name, self.cases[name].request.extra_keys)
        self.call_manager("allocate_slots", request=stranger, num_new_tokens=1)

    @step("MAN-4")
    def free_request_wrongly(self, name: str) -> None:
        """What was written is no negative number (MAN-4)."""
        self.call_manager("free", request=Ref(name), num_written=-1)

    @step("MAN-3")
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

    @step("MAN-5")
    def free_again(self, name: str) -> None:
        """Frees a request that went already, or never came to run (MAN-5)."""
        self.free_request(name, None)

    @step("MAN-5")
    def free_another(self, name: str) -> None:
        """Frees another request with the id of a live one (MAN-5)."""
        self.free_a_namesake(name)

    def running(self) -> list[str]:
        """The live requests that run."""
        return [
            name for name in self.names_of(live=True) if self.cases[name].request.status is EngineRequestStatus.RUNNING
        ]
