"""How requests of the manager machines come, are admitted and go; other steps admit one where they need one."""

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, ExtraKey, MultimodalItem, PromptEmbeddings

from ..calls.datum import Call, Prompt, Ref
from ..calls.spelling import Spelling
from .base import Both, Nothing
from .draws import EXTRA_KEYS, Drawing
from .manager_base import ManagerMachine

__all__ = ["IDS", "Admission"]

IDS = ("a", "b", "c", "d")
"""The ids of requests: few, so that they are used again."""


class Admission(ManagerMachine):
    """Brings requests, looks them up, admits them, frees them and forgets their keys.

    Attributes:
        extra_keys: those of a request are drawn from these.
    """

    extra_keys: ClassVar[tuple[tuple[ExtraKey, ...], ...]] = ((),) * (2 * len(EXTRA_KEYS)) + EXTRA_KEYS

    def unused(self) -> list[str]:
        """The ids that no live request has."""
        return [name for name in IDS if name not in self.names_of(live=True)]

    def arrived(self, data: Drawing) -> str:
        """A request comes; returns its id."""
        gone = self.names_of(live=False)
        unused = [name for name in IDS if name not in self.cases]
        name = data.one_of(data.one_of([unused or gone, gone or unused]))
        text, known = list(self.world.text), [case.tokens for case in self.cases.values()]
        prefix = data.one_of([text, text, *known, *known, []] if text else [[], *known, *known])
        if data.one_of([False, False, True]):
            prefix = prefix[: data.draw(st.integers(0, len(prefix)))]
        least = max(self.unit + 1 - len(prefix), 0) if self.unit > 1 and data.one_of([True, False]) else 0
        alphabet = st.sampled_from(self.world.alphabet)
        more = data.draw(st.lists(alphabet, min_size=least, max_size=max(least, 3 * min(self.unit, 3))))
        tokens = [*prefix, *more][: self.max_model_len] or [self.world.alphabet[0]]
        odd: bool = data.one_of([False, False, False, True])
        if prefix and odd:  # alike but for one token: only the keys' chain tells
            place = data.draw(st.integers(0, len(tokens) - 1))
            tokens[place] = self.world.alphabet[tokens[place] == self.world.alphabet[0]]
        logprobs = 1 if data.rarely() and data.rarely() else None
        keys = data.one_of(self.extra_keys)
        if any(isinstance(key, MultimodalItem | PromptEmbeddings) for key in keys) and data.one_of([False, True]):
            keys = tuple(_later(key, self.unit) for key in keys)  # what comes before it is shared with other prompts
        self.bring(name, tokens, keys, logprobs, data.one_of(self.world.spellings))
        if data.one_of([True, True, False]):
            self.look_up(name)
        return name

    def bring(
        self,
        name: str,
        tokens: list[int],
        extra_keys: tuple[ExtraKey, ...] = (),
        logprobs: int | None = None,
        spelling: Spelling | None = None,
    ) -> None:
        """A request comes under an id that is not live, its tokens handed over as in this world unless told how."""
        how = spelling or self.world.spellings[0]
        self.make_call(self.call_of("Request", None, prompt=Prompt(tuple(tokens), extra_keys, how, name, logprobs)))

    def impossible_counts(self, name: str) -> list[int]:
        """Computed tokens that a live request can't have: never given slots, fallen, or of a state rolled back."""
        case = self.cases[name]
        counts = [self.max_model_len + 1, case.slots + 1, *([case.least - 1] if case.least else [])]
        if self.world.has_states and case.given > case.request.num_computed_tokens:
            counts += [case.given - 1] * 2  # MAN-13
        return counts

    def admitted(self, data: Drawing) -> str:
        """Admits a waiting request, or one that comes just now; returns its id."""
        waiting = self.names_of(live=False)
        name = data.one_of(waiting) if waiting else self.arrived(data)
        case = self.cases[name]
        kind = data.one_of(["fresh", "fresh", "fresh", "stale", "part", "none"])
        found = case.found if kind == "stale" else None
        if kind in ("fresh", "part"):
            found = self.look_up(name)
        hits = None if found is None else found.spec[1]
        if kind == "part" and hits:
            hits = data.draw(st.integers(0, hits // self.unit)) * self.unit
        new = data.counted(self.chunk(data, hits or 0, case.request.num_tokens))
        self.admit_with(name, new, hits, **self.extras(data))
        self.probe()
        return name

    def admit_with(self, name: str, new: int, hits: int | None = None, **options: Any) -> None:
        """A waiting request gets slots.

        Args:
            name: its id.
            new: tokens to be computed.
            hits: how many tokens of what its last look-up found are handed back; None to hand nothing back.
            options: other arguments of ``allocate_slots``.
        """
        case = self.cases[name]
        if case.live:
            raise Nothing
        case.request.num_computed_tokens = 0
        self.allocate(name, new, hits, **options)

    def chunk(self, data: Drawing, start: int, end: int) -> int:
        """How many tokens a step computes that begins after ``start`` tokens of ``end``: all, up to a page, or some."""
        most = max(min(end, self.max_model_len) - start, 1)
        even = (start + most) // self.unit * self.unit - start
        if self.world.gives_back:  # only from the second step on there is anything to give back
            way = data.one_of(["even", "all", "even", "all", "some"])
        else:
            way = data.one_of(["all"] * 6 + ["even", "some"])
        if way == "even" and even > 0:
            return even
        return data.draw(st.integers(1, most)) if way == "some" else most

    def extras(self, data: Drawing) -> dict[str, Any]:
        """Now and then look-ahead, or pages published late."""
        options: dict[str, Any] = {}
        if data.rarely() and self.takes("num_lookahead_tokens"):
            options["num_lookahead_tokens"] = data.one_of([1, 2, 3, self.max_model_len])
        if data.rarely() and self.takes("delay_cache_pages"):
            options["delay_cache_pages"] = True
        return options

    def some_live(self, data: Drawing) -> str:
        """A live request; where there is none one is admitted, which may fail."""
        live = self.names_of(live=True)
        name = data.one_of(live) if live else self.admitted(data)
        if not self.cases[name].live:
            raise Nothing
        return name

    def unfinished(self) -> list[str]:
        """The live requests that can go on."""
        return [name for name in self.names_of(live=True) if self.cases[name].given < self.max_model_len]

    def go_on(self, data: Drawing, name: str) -> None:
        """A live request gets slots for what comes next."""
        computed, new = self.next_chunk(data, name)
        if not new:
            raise Nothing
        self.continue_with(name, data.counted(computed), data.counted(new), **self.extras(data))

    def continue_with(self, name: str, computed: int, new: int, **options: Any) -> None:
        """A live request gets slots for ``new`` tokens behind those computed."""
        if not self.cases[name].live:
            raise Nothing
        self.cases[name].request.num_computed_tokens = computed
        self.allocate(name, new, **options)

    def grow(self, name: str, tokens: list[int]) -> None:
        """A request has more tokens: it was decoded, or drafts were accepted."""
        for token in tokens:
            self.make_call(self.call_of("append", Ref(name), token_id=token))

    def next_chunk(self, data: Drawing, name: str) -> tuple[int, int]:
        """How many tokens of a live request are computed now, and how many come next; 0 at the longest length.

        Where all of its tokens were given slots it grows, by drafts that are accepted or by tokens of its own.
        """
        case = self.cases[name]
        request = case.request
        drafts = max(case.given - request.num_tokens, 0)
        known = min(case.given, request.num_tokens)
        least = known if self.world.has_states else max(case.least, int(request.num_computed_tokens))
        computed = data.draw(st.integers(least, max(known, least))) if data.rarely() else max(known, least)
        if computed == request.num_tokens:
            alphabet = st.sampled_from(self.world.alphabet)
            grown = data.draw(st.lists(alphabet, min_size=1, max_size=max(drafts, 2)))
            self.grow(name, grown)
            if drafts and data.one_of([True, False]):
                computed = min(case.given, request.num_tokens)
        if computed >= self.max_model_len:
            return computed, 0
        new = self.chunk(data, computed, request.num_tokens)
        if not self.world.has_states and data.rarely():
            new = min(new + 2, self.max_model_len - computed)  # with drafts, which may be rejected
        return computed, new

    def num_running(self, asked: str) -> int:
        """How many requests run, a request among them that does."""
        del asked
        return len(self.running())

    def running(self) -> list[str]:
        """The live requests that run."""
        return [
            name for name in self.names_of(live=True) if self.cases[name].request.status is EngineRequestStatus.RUNNING
        ]

    def turn(self, data: Drawing) -> None:
        """Draws which pool is meant by a side's ``pool`` and ``pages``, where there are several."""

    def some_case(self, data: Drawing) -> str:
        """A request, live or not; where there is none one comes."""
        return data.one_of(list(self.cases)) if self.cases else self.arrived(data)

    def probe(self) -> None:
        """Looks up every waiting request, in examples that do so after every change: nothing changes by it."""
        if self.world.probing:
            for name in self.names_of(live=False):
                self.look_up(name)

    # -- Requests go ----------------------------------------------------------------------------------------

    def free_takes_written(self) -> bool:
        """Whether the backend's manager can be told what was written."""
        return self.backend.names.accepts("CacheManager.free", "num_written")

    def free_request(self, name: str, written: int | None) -> None:
        """Frees a request on both sides."""
        self.call_manager("free", request=Ref(name), **({} if written is None else {"num_written": written}))

    def note_free(self, name: str, call: Call, freed: Both) -> None:
        """Notes that a request is gone, and whose pages were withdrawn with it."""
        case, written = self.cases[name], call.arguments.get("num_written")
        if case.live and written is not None and self.caching:
            self.ghost.withdraw(self.was.held, max(case.hits, written))
            for holder in freed.spec:
                self.cases[holder].void = True
        case.live = False
        case.request.num_computed_tokens = 0

    def drop_keys(self, name: str) -> None:
        """Drops the keys computed for a request; nothing else changes."""
        if self.offers("manager", "free_page_hashes"):
            self.call_manager("free_page_hashes", request=Ref(name))

    def namesake(self, name: str, extra_keys: tuple[ExtraKey, ...] = ()) -> Prompt:
        """Another object with the id of a request, live or not: it is not that request."""
        return Prompt(tuple(self.cases[name].tokens), extra_keys, request_id=name)

    def free_a_namesake(self, name: str) -> None:
        """Frees another object with the id of a request, which does nothing."""
        self.call_manager("free", request=self.namesake(name))


def _later(key: ExtraKey, tokens: int) -> ExtraKey:
    """A key that is about other tokens, so much later; one that is about a whole request as it is."""
    return replace(key, offset=key.offset + tokens) if isinstance(key, MultimodalItem | PromptEmbeddings) else key
