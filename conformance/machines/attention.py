"""The attention machines: ragged batches over poisoned pages, held against the specification's dense float64."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from ..backends.levels import LEVELS
from ..calls.arrays import ATTENTION
from ..calls.datum import Call, Ref
from ..calls.deviation import SpecificationError, attempt
from ..calls.method import Method, Table
from ..calls.source import Nth
from .arrays import SLIGHT, Array, Near, shape_and_type, worst
from .base import Both, Side
from .binding import bound_together
from .cache import CacheMachine
from .calling import Calling, Calls
from .draws import Drawing
from .properties import start, step
from .ragged import (
    BASES,
    COMMON,
    IN_PAGES,
    LATENT,
    LIMITS,
    MASKS,
    NARROW,
    OPTIONS,
    SETUPS,
    WIDE_WINDOW,
    Batch,
    Setup,
    draw_batch,
    name_with,
    shared_out,
)

__all__ = ["Attention", "Latents", "Limits", "RaggedMachine"]


Attend = Callable[[list[Any], dict[str, Any]], Any]


def blame(
    batch: Batch, call: Attend, near: Near, seen: Array, place: tuple[int, ...], harmless: Collection[str] = ()
) -> str | None:
    """The clause by which a result is wrong.

    Args:
        batch: the batch.
        call: calls the backend's attention with arguments and keywords.
        near: what is right.
        seen: what the backend gave.
        place: the place of the largest error.
        harmless: what was not poisoned in the call.

    Returns:
        The label; None if the same call gives what is right now.
    """
    if place[0] >= batch.tokens:
        return "ATT-4"
    if batch.rows_that_read_nothing()[place[0]]:
        return "ATT-2"
    for clean, clause in (((), None), (("slots",), "ATT-3"), (("padding",), "ATT-4"), (("slots", "padding"), "ATT-3")):
        if _right(batch, near, call, batch.arguments({*clean, *harmless})):
            return clause if set(clean).difference(harmless) else None
    error = abs(float(seen[place]) - float(near.right[place]))
    if np.isnan(error):
        return "ATT-1"
    if error <= SLIGHT * float(near.tolerance[place]) or _scales_are_missing(batch, call):
        return "ATT-6"
    return "ATT-1"


def _right(batch: Batch, near: Near, call: Attend, arguments: list[Any]) -> bool:
    again = attempt(lambda: np.asarray(call(arguments, batch.keywords())))
    if again.error is not None or again.value.shape != near.right.shape:
        return False
    return worst(near, again.value) is None


def _scales_are_missing(batch: Batch, call: Attend) -> bool:
    """Whether the backend gives the same whatever the scales are."""
    named = batch.keywords()

    def result(more: dict[str, Any]) -> Array | None:
        found: Array | None = attempt(lambda: np.asarray(call(batch.arguments(), named | more))).value
        return found

    for scale in {"q_scale", "k_scale", "v_scale"} & named.keys():
        one, other = result({}), result({scale: 4 * named[scale]})
        if one is not None and other is not None and np.array_equal(one, other, equal_nan=True):
            return True
    return False


_MISUSES = 8
"""Calls with a fault that a step makes: there are some hundred and fifty faults, and each is refused at once."""


class AttentionFaults(CacheMachine, Calling):
    """The steps of the attention machine that must be refused.

    A side has the arrays of a good call by the names of the arguments.

    Attributes:
        simplest: the simplest setup that the backend takes; "" if it takes none of the simple ones.
        simple: the setups that are simple.
        spoilt_functions: the functions that are called with a fault.
    """

    tables: ClassVar[tuple[Table, ...]] = (ATTENTION,)
    simple: ClassVar[tuple[str, ...]] = ("plain", "rows")
    spoilt_functions: ClassVar[tuple[str, ...]] = ("ragged_paged_attention", "fused_ragged_paged_attention")
    simplest = ""
    checks_numbers = False

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: the functions that attend."""
        return [ATTENTION[name] for name in cls.spoilt_functions]

    @step(when=lambda self: self.simplest)
    def misuse(self, source: Drawing) -> Calls:
        """Wrong types, shapes and options; lengths, starts and page ids that are impossible, where they are checked."""
        for _ in range(_MISUSES):
            row, name, place = self.session.dealt(
                "fault", self.every_fault(), lambda count: source.integer(0, count - 1)
            )
            self.checks_numbers = self.backend.names.accepts(row.name, "validate")
            yield self.spoilt(row, Nth(place), name)

    def every_fault(self) -> Iterator[tuple[Method, str, int]]:
        """The faults that calls can have; see `Method.every_fault`."""
        for row in self.rows():
            if self.taken(row.name, SETUPS[self.simplest]):
                self.checks_numbers = self.backend.names.accepts(row.name, "validate")
                yield from ((row, *fault) for fault in row.every_fault(self))

    def taken(self, function: str, setup: Setup) -> bool:
        """Whether the backend has a function, and takes what a setup describes: ``kvproof_takes_setup`` says so."""
        if not self.offered(function) or (setup.layout.scaled and not self.offered("ScaledPages")):
            return False
        names = self.backend.names
        keywords = [*setup.keywords, *(["sinks"] if setup.sinks else [])]
        lacking = {f"{function}({keyword})" for keyword in keywords if not names.accepts(function, keyword)}
        if lacking:
            self.session.lacks |= lacking
            return False
        return not names.offers("kvproof_takes_setup") or bool(names.get("kvproof_takes_setup")(function, setup))

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: each of them is refused."""
        both = super().make_call(call)
        if call.fault and not both.refused:
            raise SpecificationError(f"the specification is wrong: {self.calls[-1]} was not refused")
        return both

    def put_arrays(self) -> None:
        """Gives both sides the arrays of a good call."""
        batch = self.right_batch()
        of_latents = batch.kind.is_latent
        names = [name for name in ATTENTION[self.rows()[0].name].arguments if name != "scale"]
        arrays = dict(zip(names, batch.arguments(), strict=True))
        if not of_latents:
            arrays |= dict(zip(("keys", "values"), batch.new_tokens(), strict=True))
        cache = "latent_pages" if of_latents else "kv_pages"
        for side in (self.spec, self.backend):
            side.put(arrays | {cache: batch.kind.layout.given_to(side.names, arrays[cache])})

    def right_batch(self) -> Batch:
        """The batch that faults are put into."""
        return Batch(self.simplest, (1, 2), (3, 5), ((1,), (2, 3)), (0, 0))

    @property
    def most_keys(self) -> int:
        """The longest context of a good call's sequences."""
        return SETUPS[self.simplest].most_keys

    @property
    def num_pages(self) -> int:
        """The pages of a good call."""
        return SETUPS[self.simplest].layout.num_pages

    @property
    def num_tokens(self) -> int:
        """The query tokens of a good call."""
        return SETUPS[self.simplest].num_tokens

    @property
    def num_rows(self) -> int:
        """The table rows of a good call."""
        return SETUPS[self.simplest].num_seqs

    @property
    def query_heads(self) -> int:
        """The query heads of a good call."""
        return SETUPS[self.simplest].query_heads

    def show(self, ref: Ref) -> str:
        """See `Calling.show`: arrays by their names."""
        return str(ref)


WRITTEN = ("plain", "chunk", "written, window")
"""The setups whose batches are also written by the call that attends, a program more for each."""

_BESIDE_A_WIDE_WINDOW = 8
"""The place of the option that `shared_out` puts beside the first one in the second setup with both masks only.

There the window is wider than the chunks and binds nowhere."""

_OF_ONE_BASE = 4
"""The place of the option that is in no program of the other base, where there are five: it is in the first, third and
last. That is none of those which change what stands in a page, as the bases are layouts of pages."""

_NO_MASK = "v_head_dim"
"""What stands at that place: an option that is a shape, which binds always or never."""


class RaggedMachine(AttentionFaults):
    """Calls stand alone: each makes its own cache, that of a batch, and the backend may keep nothing.

    Attributes:
        known: the setups that are drawn; a program is compiled for each.
        few: how many of them in a run of the usual length.
        bases: what options are added to: of each of these lists the first setup that the backend takes.
        base: the name of the first of them; "" if there is none.
        other_base: the name of the last of them, which every second program has; the first where there is no other.
        options: the options that the backend takes.
        setups: the names of those that the backend takes.
        written: the names of those whose batches it also writes in the call that attends.
    """

    known: ClassVar[Mapping[str, Setup]] = COMMON
    few: ClassVar[int] = 4
    bases: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @start()
    def construct(self) -> None:
        """Nothing is kept from call to call."""
        self.setups = [name for name, setup in self.offered_setups().items() if self.taken(setup.function, setup)]
        written = [name for name in WRITTEN if name in self.offered_setups()]
        self.written = [name for name in written if self.taken("fused_ragged_paged_attention", SETUPS[name])]
        simple = [name for name in self.simple if self.taken(self.spoilt_functions[0], SETUPS[name])]
        self.simplest = simple[0] if simple else ""
        if self.simplest:
            self.put_arrays()
        taken = ([base for base in bases if self.taken(BASES[base].function, BASES[base])] for bases in self.bases)
        bases = [those[0] for those in taken if those]
        self.base, self.other_base = (bases[0], bases[-1]) if bases else ("", "")
        self.options = [option for option in OPTIONS if self.base and self.takes_options([option])]

    def offered_setups(self) -> Mapping[str, Setup]:
        """The setups that are drawn, if the backend takes them; more of few options if it says what it takes."""
        says = self.backend.names.offers("kvproof_takes_setup") and self.known is COMMON
        return {**self.known, **NARROW} if says else self.known

    @step("ATT-1", "ATT-2", "ATT-3", "ATT-4", "ATT-6", weight=4, when=lambda self: self.setups)
    def attend(self, data: Drawing) -> None:
        """Ragged rows, causal or not, windows, chunks, caps, sinks and scales; NaN wherever nothing may be read."""
        batch = draw_batch(data, self.some_setup(data))
        clean = self.harmless()
        arguments = batch.arguments(clean)
        both = self.call(
            f"{self.function(batch)}(*batch.arguments({_listed(clean)}), **batch.keywords())  # batch = {batch}",
            lambda side: self.attended(side, batch, arguments),
            "ATT-1",
            shape_and_type,
        )
        self.judge(batch, both.spec, both.backend, arguments[-5])
        if self.options:
            self.note_bound(batch, arguments, both.spec)

    def note_bound(self, batch: Batch, arguments: list[Any], result: Any) -> None:
        """Counts, once in a run, each two options that both change what is right."""
        right = np.asarray(result).astype(np.float64)
        tolerance = self.tolerance(batch, right, arguments[-5])

        def attend(keywords: dict[str, Any]) -> Any:
            return self.attended(self.spec, batch, arguments, keywords)

        known, keywords = self.session.drawn.keys(), batch.keywords()
        self.session.note_drawn(bound_together(batch.kind, known, keywords, right, tolerance, attend))

    def takes_options(self, options: Sequence[str], base: str = "", function: str = "") -> bool:
        """Whether the backend takes some options together, in the function that attends or in another."""
        setup = SETUPS.get(name_with(base or self.base, options))
        return setup is not None and self.taken(function or setup.function, setup)

    def some_setup(self, data: Drawing) -> str:
        """Draws a setup that the backend takes: one of those known, or one with a few options."""
        if not self.options or data.one_of([True, False]):
            return str(self.session.one_of_few("setup", data.one_of(self.setups), self.few))
        return self.program(data)

    def program(self, data: Drawing, function: str = "") -> str:
        """Draws a setup with options, of those shared out: each second one of the other base, if that is taken."""
        shares = self.shares(data)
        place = data.one_of(range(len(shares)))
        has_other = place % 2 and self.takes_options(shares[place], self.other_base, function)
        return name_with(self.other_base if has_other else self.base, shares[place])

    def shares(self, data: Drawing) -> list[list[str]]:
        """Options for a few programs, shared out in an order that is drawn once in a run; see `shared_out`.

        Any two that the backend takes together are in one program of every run; what it does not is split.
        """
        masks = [mask for mask in MASKS if mask in self.options]
        others = [option for option in self.options if option not in (*masks, _NO_MASK)]
        order = masks + list(self.session.one_of_few("options", tuple(data.draw(st.permutations(others))), 1))
        elsewhere = [place for place in range(len(masks), len(order)) if order[place] not in IN_PAGES]
        if elsewhere and order[_OF_ONE_BASE : _OF_ONE_BASE + 1] and order[_OF_ONE_BASE] in IN_PAGES:
            order[_OF_ONE_BASE], order[elsewhere[0]] = order[elsewhere[0]], order[_OF_ONE_BASE]
        if _NO_MASK in self.options:
            order.insert(_BESIDE_A_WIDE_WINDOW, _NO_MASK)
        shares: list[list[str]] = []
        for program in shared_out(order):
            parts: list[list[str]] = [[]]
            for option in program:
                if not parts[-1] or self.takes_options([*parts[-1], option]):
                    parts[-1].append(option)
                else:
                    parts.append([option])
            shares += [part for part in parts if part not in shares]
        both = [place for place, share in enumerate(shares) if set(share).issuperset(MASKS)]
        for place in both[1:2]:
            shares[place] = [WIDE_WINDOW if option == MASKS[0] else option for option in shares[place]]
        return shares

    def function(self, batch: Batch) -> str:
        """How a report calls the function that attends."""
        return batch.kind.function

    def attended(self, side: Side, batch: Batch, given: list[Any], keywords: dict[str, Any] | None = None) -> Any:
        """What a side's attention gives for some arguments."""
        arguments = list(given)
        arguments[-5] = batch.kind.layout.given_to(side.names, arguments[-5])
        return side.names.get(batch.kind.function)(*arguments, **(batch.keywords() if keywords is None else keywords))

    def harmless(self) -> list[str]:
        """What is not poisoned, as a clause that would be broken by it is not looked at (ATT-3, ATT-4)."""
        known = (("slots", "ATT-3"), ("padding", "ATT-4"))
        return [word for word, clause in known if clause not in self.session.clauses]

    def judge(
        self,
        batch: Batch,
        right: Any,
        seen: Any,
        pages: Any,
        fused: Callable[[list[Any], dict[str, Any]], Any] | None = None,
    ) -> None:
        """Holds a result against the specification's (ATT-6), past the last sequence against zeros.

        Args:
            batch: the batch.
            right: the specification's result.
            seen: the backend's.
            pages: the cache that was read.
            fused: where the backend wrote its tokens in the same call: makes that call again, given the arguments of
                one that only attends.
        """
        for clause in ("ATT-1", "ATT-3", "ATT-4", "ATT-6"):
            self.compared(clause)
        if batch.rows_that_read_nothing().any():
            self.compared("ATT-2")
        wanted, out = np.asarray(right).astype(np.float64), np.asarray(seen)
        near = Near(wanted, self.tolerance(batch, wanted, pages))
        place = worst(near, out)
        if place is None:
            return

        def again(given: list[Any], named: dict[str, Any]) -> Any:
            if fused is not None and not self.taken(batch.kind.function, batch.kind):
                return fused(given, named)
            return self.attended(self.backend, batch, given, named)

        found = blame(batch, again, near, out, place, self.harmless())
        self.differ(found or ("ATT-5" if fused is not None else "ATT-1"), *near.told(place, out))

    def tolerance(self, batch: Batch, right: Any, pages: Any) -> Any:
        """How far off each entry may be; anything where only a clause that is not looked at says what it is."""
        allowed = batch.tolerance(right, pages)
        if "ATT-4" not in self.session.clauses:
            allowed[batch.tokens :] = np.inf
        if "ATT-2" not in self.session.clauses:
            allowed[batch.rows_that_read_nothing()] = np.inf
        return allowed


class Attention(RaggedMachine):
    """Masks, layouts and types that many models have; a batch may be written by the call that attends."""

    name = "attention"
    levels = frozenset(LEVELS)
    capability = "kernels"
    needs = ("ragged_paged_attention",)
    examples, num_steps = 24, 12
    bases = (("plain", "rows"), ("columns",))

    def can_fuse(self) -> bool:
        """Whether a batch can be written by the call that attends."""
        return bool(self.written)

    def some_written(self, data: Drawing) -> str:
        """Draws a setup whose batches are written as well: one of those known, or one with options, once in a run."""
        with_options: bool = data.one_of([False, False, True])
        if self.options and with_options:
            name: str = self.session.one_of_few("fused", self.program(data, "fused_ragged_paged_attention"), 1)
            if self.taken("fused_ragged_paged_attention", SETUPS[name]):
                return name
        return data.one_of(self.written)

    @step(
        "ATT-1", "ATT-2", "ATT-3", "ATT-4", "ATT-5", "ATT-6", "CACHE-2", "CACHE-3", "CACHE-4", weight=3, when=can_fuse
    )
    def attend_fused(self, data: Drawing) -> None:
        """Writes the query tokens and attends in one call: what one row writes another may read."""
        batch = draw_batch(data, self.some_written(data), writes=True)
        self.layout = batch.kind.layout
        clean = self.harmless()
        queries, _, *rest = batch.arguments(clean)
        before, tokens = batch.kv_pages("slots" in clean, before=True), batch.new_tokens()

        def attend(side: Side, given: list[Any], named: dict[str, Any]) -> Any:
            pages = self.layout.given_to(side.names, given[1])
            return side.names.get("fused_ragged_paged_attention")(given[0], *tokens, pages, *given[2:], **named)

        listed = _listed(clean)
        both = self.call(
            f"fused_ragged_paged_attention(*batch.arguments({listed}), **batch.keywords())  # writing; batch = {batch}",
            lambda side: attend(side, [queries, before, *rest], batch.keywords()),
            "ATT-5",
            lambda made, side: (shape_and_type(made[0], side), self.described(made[1], side)),
        )
        out, pages = both.backend
        keys, values = (part[: batch.tokens].astype(np.float32) for part in tokens)
        slots = batch.written()
        held = slots >= 0
        self.hold_update(before, pages, slots[held].tolist(), keys[held], values[held])
        # The backend may have rounded a stored number the other way: what counts is what it stored (ATT-6).
        stored = self.layout.given_to(self.spec.names, _of_numpy(pages))
        right = self.attended(self.spec, batch, [queries, stored, *rest])
        self.compared("ATT-5")
        self.judge(batch, right, out, stored, lambda given, named: attend(self.backend, given, named)[0])


class Limits(RaggedMachine):
    """Many query heads of an odd size, long rows, positions past 32767, page ids past 65535, several key blocks."""

    name = "limits"
    levels = frozenset(LEVELS)
    capability = "kernels"
    needs = ("ragged_paged_attention",)
    examples, num_steps = 15, 10
    known = LIMITS
    few = 5


class Latents(RaggedMachine):
    """Attention over latents: one head, whose value is its key but for the rotary part."""

    name = "latents"
    levels = frozenset(LEVELS)
    capability = "kernels"
    needs = ("mla_paged_attention",)
    examples, num_steps = 12, 10
    known = LATENT
    bases = (("latent",),)
    simple = ("latent",)
    spoilt_functions = ("mla_paged_attention",)


def _listed(words: list[str]) -> str:
    """An argument as a report shows it; nothing where there is nothing to say."""
    return repr(words) if words else ""


def _of_numpy(pages: Any) -> Any:
    """Pages as numpy arrays."""
    return tuple(map(np.asarray, pages)) if isinstance(pages, tuple) else np.asarray(pages)
