"""What moves in the soak: requests to host memory and back, pages that come from elsewhere, whole managers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.spec.declarations import MambaSpec, Request

from ..calls.arrays import ATTENTION
from ..calls.manager import MANAGER
from .base import Both, Nothing, Side
from .properties import operation
from .soak_base import SoakBase

__all__ = ["SoakMoves"]

_PAGES = 4096
"""The pages of the caches that prefixes are exported from, however few the manager has: programs are compiled once."""

_STATES = MambaSpec(1, ((1,),), ("float32",), "align")
"""What such a page holds: one number. At first that of the page itself."""

_KEPT = 4
"""The number of last exported prefixes that are kept."""


class SoakMoves(SoakBase):
    """Requests, prefixes and managers that move.

    A side has ``exported``, the files of the last prefixes that it exported, and ``caches``, one of each group.

    Attributes:
        carried: the tokens and extra keys of these prefixes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.carried: list[Request] = []

    # -- Requests move --------------------------------------------------------------------------------------

    @operation
    def swap_out(self, name: str) -> None:
        """A live request goes to host memory."""
        case = self.case_of(name, live=True)
        case.request.num_computed_tokens = min(case.given, case.request.num_tokens)
        plan = self.asked("swap_out", "swap", request=name)
        if plan.spec is not None:
            given = case.request.num_computed_tokens
            self.gone(name)
            case.given, case.flights, case.request.num_computed_tokens = given, [int(plan.spec.swap_id)], given

    @operation
    def swap_in(self, name: str) -> None:
        """A request comes back from host memory."""
        case = self.case_of(name)
        if case.flights != [-1]:
            raise Nothing
        plan = self.asked("swap_in", "swap", request=name)
        if plan.spec is not None:
            case.flights = [int(plan.spec.swap_id), -2]

    @operation
    def fence(self, flight: int) -> None:
        """Copies have ended."""
        done = self.asked("swap_done", swap_id=flight)
        name = next((name for name, case in self.cases.items() if flight in case.flights), None)
        if name is None or done.refused:
            return
        case = self.cases[name]
        back, received, case.flights = -2 in case.flights, -3 in case.flights, []
        if back:
            self.granted(name, case.given)
        elif not received:
            case.flights = [-1]

    # -- Pages from elsewhere -------------------------------------------------------------------------------

    def receives(self) -> bool:
        """Whether pages can come from elsewhere."""
        return not self.lacks("swaps") and self.offers("manager", "receive_pages")

    def exports(self) -> bool:
        """Whether prefixes can be exported and imported."""
        names = ("export_prefix", "import_prefix", "StatePages", "ExportedPrefix")
        return self.receives() and all(map(self.offered, names))

    @operation
    def receive(self, name: str, tokens: int) -> None:
        """The pages of a waiting request's first tokens come from elsewhere; their copies are under way."""
        case = self.case_of(name, live=False)
        count = min(tokens, case.request.num_tokens, self.world.max_model_len) // self.world.unit * self.world.unit
        if case.flights or not count or not self.receives():
            raise Nothing
        plan = self.asked("receive_pages", "import", request=name, num_tokens=count)
        if plan.spec is not None:
            case.flights = [int(plan.spec.swap_id), -3]

    @operation
    def export_prefix(self, name: str) -> None:
        """Exports what is cached of a request: a file, which is the same on both sides (SWAP-2)."""
        request = self.case_of(name).request
        if not self.exports():
            raise Nothing

        def act(side: Side) -> Any:
            found = side.names.get("export_prefix")(side.manager, request, self._caches(side), "model")
            return None if found is None else found.to_bytes()

        self.session.note_drawn([f"{ATTENTION.name}.export_prefix"])
        found = self.exported(f"export_prefix(manager, {name}, caches, 'model')", request, act)
        if found.refused:
            return
        self.known[name] = request
        if found.spec is not None:
            for side in (self.spec, self.backend):
                side.put({"exported": [*vars(side).get("exported", []), self.result_on(side, found)][-_KEPT:]})
            self.carried = [*self.carried, Request("carried", request.all_token_ids, request.extra_keys)][-_KEPT:]
            self.met.note(["export"], len(self._trace))

    def exported(self, line: str, request: Request, act: Callable[[Side], Any]) -> Both:
        """Makes the call that exports a request's prefix, and compares the files."""
        del request
        return self.call(line, act, "SWAP-2", self.of_file)

    @operation
    def import_prefix(self, place: int, dropped: int, rest: int) -> None:
        """Imports one of the last exported prefixes, of which the last pages may not be cached any more (SWAP-2).

        For a request whose first token is another it is refused.

        Args:
            place: which one.
            dropped: how many of its pages that are cached lose their hashes first, the last ones of the first group.
            rest: the most tokens that the request has behind the prefix.
        """
        if place >= len(self.carried) or not self.exports():
            raise Nothing
        whole = self.carried[place]
        count = self.spec.names.get("ExportedPrefix").from_bytes(self.spec.exported[place]).header["num_tokens"] + rest
        request = Request("carried", whole.all_token_ids[:count], whole.extra_keys)
        if dropped and self.offers("pool", "evict_pages"):
            self._drop_last(request, dropped)

        imported = self._import(place, request, "a request like it")
        if imported.spec:
            self.met.note(["import"], len(self._trace))
            self._export_again(request)
        tokens = request.all_token_ids.copy()
        tokens[0] ^= 1
        self._import(place, Request("carried", tokens, request.extra_keys), "a request with another first token")

    def _import(self, place: int, request: Request, whose: str) -> Both:
        """Imports one of the last exported prefixes for a request, which must have its tokens and extra keys."""

        def act(side: Side, manager: Any = None) -> bool:
            exported = side.names.get("ExportedPrefix").from_bytes(side.exported[place])
            into = manager or side.manager
            after = side.names.get("import_prefix")(into, request, self._caches(side), "model", exported)
            side.put({} if after is None else {"caches": after})
            return after is not None

        self.session.note_drawn([f"{ATTENTION.name}.import_prefix"])
        line = f"import_prefix(manager, <{whose}>, caches, 'model', exported[{place}])"
        return self.imported(line, request, act)

    def _export_again(self, request: Request) -> None:
        """Exports what was just imported, which tells what its pages hold now."""

        def act(side: Side) -> Any:
            found = side.names.get("export_prefix")(side.manager, request, self._caches(side), "model")
            side.manager.free_page_hashes(request)  # it never comes: nobody may remember it
            return None if found is None else found.to_bytes()

        self.exported("export_prefix(manager, <that request>, caches, 'model')", request, act)

    def imported(self, line: str, request: Request, act: Callable[..., bool]) -> Both:
        """Makes the call that imports a prefix.

        Args:
            line: it as a report shows it.
            request: a request with the prefix.
            act: makes it on a side; by another manager than the side's, where one is given.
        """
        del request
        return self.call(line, act, "SWAP-2", charge=MANAGER["receive_pages"].charges_by_field)

    def _drop_last(self, request: Request, count: int) -> None:
        """Drops the hashes of the last pages that a request would hit."""
        line, evicts = "found, _ = manager.get_computed_pages(<a request like it>)", MANAGER["evict_pages"]

        def look_up(side: Side) -> Any:
            found = side.manager.get_computed_pages(request)
            side.manager.free_page_hashes(request)  # it never comes: nobody may remember it
            return found

        found = self.looked_up(f"{line}; manager.free_page_hashes(<it>)", look_up)
        if found.refused or found.spec is None:
            return
        pages = [int(page.page_id) for page in found.spec[0].pages[0] if page.page_id][-count:]
        self.call(
            f"manager.page_pool.evict_pages({pages})",
            lambda side: side.pool.evict_pages(pages),
            evicts.clause,
            lambda *_: None,
            evicts.charges_by_field,
        )

    def looked_up(self, line: str, act: Callable[[Side], Any]) -> Both:
        """Makes a look-up that is no request's of the life; returns what each side goes on from."""
        row = MANAGER["get_computed_pages"]
        return self.call(line, act, row.clause, row.result.plain)

    def _caches(self, side: Side) -> list[Any]:
        """The pages of each group; they are made when they are needed first."""
        if "caches" not in vars(side):
            numbers = np.arange(_PAGES, dtype=np.int32)
            empty = [side.names.get("StatePages").init(None, _STATES, _PAGES) for _ in self.world.groups]
            side.put({"caches": [[pages.write(numbers, [numbers[:, None].astype(np.float32)])] for pages in empty]})
        caches: list[Any] = side.caches
        return caches

    def of_file(self, file: Any, side: Side) -> object:
        """What stands in the file of an exported prefix."""
        if file is None:
            return None
        exported = side.names.get("ExportedPrefix").from_bytes(file)
        return exported.header, {name: array.tolist() for name, array in exported.arrays.items()}

    @operation
    def restore(self) -> None:
        """The backend goes on from its own snapshot; the specification as it was."""
        if any(case.flights for case in self.cases.values()) or not self.offers("manager", "snapshot"):
            raise Nothing
        requests = list(self.known.values())

        def act(side: Side) -> Any:
            if side is self.spec:
                return True
            manager = side.names.get("CacheManager").restore(side.manager.snapshot(), requests)
            told = {name: value for name, value in vars(side).items() if name in ("told", "follower")}
            pages = {int(page.page_id): page for page in manager.page_pool.pages}
            side.put({"manager": manager, "pool": manager.page_pool, "pages": pages, **told})
            return True

        self.made(
            *("snapshot", "manager = CacheManager.restore(manager.snapshot(), requests)", act),
            *(lambda *_: None, "restore"),
        )
