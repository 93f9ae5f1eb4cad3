"""How requests of the manager machine come and are admitted; other steps admit one where they need one."""

from typing import Any

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, ExtraKey, Request

from .base import Both, Nothing, Side
from .draws import EXTRA_KEYS, Drawing, one_of, rarely
from .manager_base import Case, ManagerMachine

__all__ = ["IDS", "Admission"]

IDS = ("a", "b", "c", "d")
"""The ids of requests: few, so that they are used again."""


class Admission(ManagerMachine):
    """Brings requests, looks them up and admits them."""

    alphabet = (0, 1)
    probing = False

    def arrived(self, data: Drawing) -> str:
        """A request comes; returns its id."""
        gone = self.names_of(live=False)
        unused = [name for name in IDS if name not in self.cases]
        name = one_of(data, one_of(data, [unused or gone, gone or unused]))
        known = [case.tokens for case in self.cases.values()]
        prefix = one_of(data, [[], *known])
        tokens = [*prefix, *data.draw(st.lists(st.sampled_from(self.alphabet), max_size=3 * self.page_size))]
        tokens = tokens[: self.max_model_len] or [self.alphabet[0]]
        odd: bool = one_of(data, [False, False, True])
        if prefix and odd:  # alike but for one token: only the keys' chain tells
            place = data.draw(st.integers(0, len(tokens) - 1))
            tokens[place] = self.alphabet[tokens[place] == self.alphabet[0]]
        extra_keys = one_of(data, EXTRA_KEYS) if one_of(data, [False, False, True]) else ()
        self.bring(name, tokens, extra_keys, 1 if rarely(data) and rarely(data) else None)
        if one_of(data, [True, True, False]):
            self.look_up(name)
        return name

    def bring(
        self, name: str, tokens: list[int], extra_keys: tuple[ExtraKey, ...] = (), logprobs: int | None = None
    ) -> None:
        """A request comes under an id that is not live."""
        earlier = self.cases.get(name)
        details = (f", {extra_keys}" if extra_keys else "") + (", prompt_logprobs=1" if logprobs else "")
        self.calls.append(f"{name} = Request({name!r}, {tokens}{details})")
        self.cases[name] = Case(Request(name, tokens, extra_keys, logprobs))
        if earlier is not None:
            self.cases[name].earlier = [*earlier.earlier, (earlier.tokens, earlier.request.extra_keys)]

    def admitted(self, data: Drawing) -> str:
        """Admits a waiting request, or one that comes just now; returns its id."""
        waiting = self.names_of(live=False)
        name = one_of(data, waiting) if waiting else self.arrived(data)
        case = self.cases[name]
        case.request.num_computed_tokens = 0
        kind = one_of(data, ["fresh", "fresh", "fresh", "stale", "part", "none"])
        found = case.found if kind == "stale" else None
        if kind in ("fresh", "part"):
            found = self.look_up(name)
            if kind == "part" and found.spec[1]:
                found = self.part_of(data, found)
        hits = found.spec[1] if found is not None else 0
        room = min(case.request.num_tokens, self.max_model_len) - hits
        new = data.draw(st.integers(1, room)) if room > 0 and rarely(data) else max(room, 1)
        self.allocate(name, new, found, **self.extras(data))
        if case.live:
            case.request.status = EngineRequestStatus.RUNNING
        self.probe()
        return name

    def extras(self, data: Drawing) -> dict[str, Any]:
        """Now and then look-ahead, or pages published late."""
        options: dict[str, Any] = {}
        if rarely(data):
            options["num_lookahead_tokens"] = data.draw(st.integers(1, 3))
        if rarely(data):
            options["delay_cache_pages"] = True
        return options

    def some_live(self, data: Drawing) -> str:
        """A live request; where there is none one is admitted, which may fail."""
        live = self.names_of(live=True)
        name = one_of(data, live) if live else self.admitted(data)
        if not self.cases[name].live:
            raise Nothing
        return name

    def part_of(self, data: Drawing, found: Both) -> Both:
        """The first pages of a hit."""
        pages = data.draw(st.integers(0, found.spec[1] // self.page_size))

        def cut(side: Side) -> Any:
            return side.names.get("CachePages")(tuple(group[:pages] for group in found.of(self, side)[0].pages))

        tokens = pages * self.page_size
        return Both((cut(self.spec), tokens), (cut(self.backend), tokens))

    def some_case(self, data: Drawing) -> str:
        """A request, live or not; where there is none one comes."""
        return one_of(data, list(self.cases)) if self.cases else self.arrived(data)

    def probe(self) -> None:
        """Looks up every waiting request, in examples that do so after every change: nothing changes by it."""
        if self.probing:
            for name in self.names_of(live=False):
                self.look_up(name)
