"""`Lockstep`: a live backend whose calls are recorded and at once replayed on the specification."""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import kvproof.spec
from kvproof.spec.clauses import CLAUSES

from ..backends.levels import LEVELS, Level
from ..backends.loading import Backend, load_backend
from ..calls.judging import Difference
from ..calls.readings import numbers_of_free_pages
from .entries import Entry, Operation, Shown
from .format import CLASSES, SEEDED, LogError, row_of
from .reading import EntryReader
from .recorded_calls import materialised
from .recording import Recorded, arguments_of, record, wrapped
from .replaying import Judge
from .writer import LogWriter

__all__ = ["Lockstep", "LockstepError"]

_ONCE = {"take_events", "take_page_copies"}
"""Calls that read, and return what they return once: the specification hears of all of them."""

_SEED = b"lockstep"


class LockstepError(AssertionError):
    """A backend did something else than the specification. Token ids are in none of its parts (SEC-2).

    Attributes:
        clause: the label of the clause that it breaks.
        call: the call that shows it, on one line.
        expected: what the specification says.
        observed: what the backend did.
        earlier: the calls before it, the last ones.
        before: the state that both showed when they were last compared, by field.
        after: the specification's state now.
        observed_after: the backend's.
    """

    def __init__(
        self,
        difference: Difference,
        call: str,
        earlier: tuple[str, ...],
        before: dict[str, Any],
        after: dict[str, Any],
        observed_after: dict[str, Any],
    ) -> None:
        self.clause, self.expected, self.observed = difference.clause, difference.expected, difference.observed
        self.call, self.earlier = call, earlier
        self.before, self.after, self.observed_after = before, after, observed_after
        super().__init__(
            f"{call} deviates from {self.clause}: expected {self.expected}, observed {self.observed} "
            f"({CLAUSES[self.clause].sentence})"
        )


class Lockstep:
    """A backend whose managers, pools and tables run the specification beside themselves.

    It has the backend's public names. What its ``CacheManager``, ``PagePool``, ``PageTable`` and
    ``MultiGroupPageTable`` make has their interface, with the same ``hash_seed`` for both. Every call that changes
    anything is recorded as `record` records it and at once made on the specification; its result, its refusal and the
    number of free pages are compared, and the first difference raises `LockstepError`. With ``every=1`` the whole
    observable state is compared after each call, which costs O(pages); with ``every=n`` after each n-th one, and of the
    calls that only read each n-th one is compared. The specification itself is slow, some 100 us a token: where that is
    too much, `record` and replay instead. At level ``safe`` the specification takes the pages that the backend takes,
    which may evict in an order of its own; see `replay_log`.

    Args:
        backend: the backend's public names: a module, an object, or its name as on the command line.
        every: calls from one comparison of the state to the next.
        file: where the calls are written as a log, if anywhere: ``kvproof shrink`` makes a short one and a test of it.
        show_tokens: see `record`; the seed of the keys stands in the log then, too.
        level: ``exact`` or ``safe``.

    Raises:
        ValueError: ``every`` is below 1, or the level is another.
        BackendError: there is no backend of that name.
    """

    def __init__(
        self,
        backend: Any,
        every: int = 1,
        *,
        file: str | Path | None = None,
        show_tokens: bool = False,
        level: Level = "exact",
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r} must be an int of at least 1")
        if level not in LEVELS:
            raise ValueError(f"level={level!r} must be one of {LEVELS}")
        if isinstance(backend, str):
            backend = load_backend(backend)
        self._holder = backend.holder if isinstance(backend, Backend) else backend
        self._beside = _Beside(every, level)
        self._file, self._show_tokens = file, show_tokens
        self._recorded: Recorded | None = None

    @property
    def comparisons(self) -> int:
        """How many results and states have been compared."""
        return self._beside.comparisons

    @property
    def strayed_at(self) -> int | None:
        """See `LogResult.strayed_at`: nothing is compared behind that call."""
        return self._beside.strayed_at

    def compare(self) -> None:
        """Compares the whole state of every object now.

        Raises:
            LockstepError: one shows something else than the specification's.
        """
        self._beside.compare(list(self._beside.readers))

    def close(self) -> None:
        """Ends the log; later calls are neither recorded nor compared."""
        self._beside.close()
        if self._recorded is not None:
            self._recorded.close()

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._holder, name)
        if name not in CLASSES:
            return own

        @functools.wraps(own, updated=())  # so that the backend's signature shows
        def make(*args: Any, **options: Any) -> Any:
            return self._made(name, args, options)

        return make

    def _made(self, name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Recorded:
        args = tuple(map(materialised, args))
        backend = Backend("the backend", self._holder)
        seeded = name in SEEDED and backend.accepts(name, "hash_seed")
        given = {**({"hash_seed": _SEED} if seeded else {}), **options}
        it = backend.get(name)(*args, **given)
        pool = {"CacheManager": getattr(it, "page_pool", None), "PagePool": it}.get(name)
        needed, possible = CLASSES[name]
        shown = dict(zip((*needed, *possible), args, strict=False)) | given
        told = {option: value for option, value in shown.items() if option in (*needed, *possible)}
        seed = {"hash_seed": given["hash_seed"]} if seeded and isinstance(given["hash_seed"], bytes) else {}
        arguments = arguments_of(name, it, told | seed)
        if self._file is not None:
            own = told | (seed if self._show_tokens else {})
            it = record(it, self._recorded or self._file, show_tokens=self._show_tokens, options=own)
            self._recorded = self._recorded or it
        recorded = wrapped(self._beside, name, it, arguments)
        number = recorded.__dict__["_kvproof_number"]
        if pool is not None:
            self._beside.pools[number] = pool
        self._beside.compare([number])
        return recorded


class _Beside(LogWriter):
    """A log that is replayed on the specification as it is recorded.

    Args:
        every: calls from one comparison of states to the next.
        level: how they are compared.

    Attributes:
        pools: the backend's pools, by the numbers of the managers whose they are, or their own.
        comparisons: how many results and states have been compared.
    """

    most_noted = 1

    def __init__(self, every: int, level: Level) -> None:
        super().__init__(show_tokens=True, redact=False, states_every=every)
        self.pools: dict[int, Any] = {}
        self.comparisons = 0
        self._every, self._reads, self._changes = every, Counter[str](), 0
        self._reader, self._judge = EntryReader(bounded=False), Judge(kvproof.spec, level=level)

    @property
    def strayed_at(self) -> int | None:
        """See `Lockstep.strayed_at`."""
        return self._judge.strayed_at

    def passes_over(self, method: str) -> bool:
        """See `LogWriter.passes_over`: of the calls of a method that only reads each n-th one is noted."""
        if method in _ONCE:
            return False
        self._reads[method] += 1
        return self._reads[method] % self._every != 1 % self._every

    def note(self, entry: str) -> None:
        """See `LogWriter.note`: free pages are counted, and after each n-th call that changes anything all is seen."""
        super().note(entry)
        last = self._judge.last
        if self._judge.strayed_at is not None:
            return
        assert last is not None, "it was just made"
        thing = self._judge.player.things[last.target]
        if row_of(thing.name, last.method).reads:
            return
        self._changes += 1
        if self._changes == self._every:
            self.compare(self._judge.touched)
        elif thing.whole in self.pools:
            self._judge.count(numbers_of_free_pages(self.pools[thing.whole]))
            self._require_same()

    def compare(self, numbers: Iterable[int]) -> None:
        """Compares what objects show now, by their numbers; reads are compared from the next one on."""
        self.flush()
        self._changes = 0
        self._reads.clear()
        for number in numbers:
            self._held_to(Shown(number, self.readers[number]()))

    def _write(self, entries: list[str]) -> None:
        for text in entries:
            for entry in self._reader.read(json.loads(text)):
                self._held_to(entry)

    def _is_state_due(self) -> bool:
        return False

    def _held_to(self, entry: Entry) -> None:
        """Plays an entry; a difference raises."""
        self._judge.wrong = None
        self.comparisons += self.strayed_at is None and isinstance(entry, Operation | Shown)
        try:
            self._judge.take(entry)
        except LogError as error:
            raise LogError(f"the specification can't make this call: {error}") from error
        self._require_same()

    def _require_same(self) -> None:
        if self._judge.wrong is not None:
            raise self._deviation(*self._judge.wrong)

    def _deviation(self, difference: Difference, shown: Shown | None) -> LockstepError:
        judge = self._judge
        *earlier, call = judge.calls or ("its construction",)
        if shown is not None:
            target = shown.target
        else:
            assert judge.last is not None, "a call deviates"
            target = judge.player.things[judge.last.target].whole
        observed = shown.fields if shown is not None else self.readers[target]()
        after = judge.state(target, device="device rows" in observed)
        return LockstepError(difference, call, tuple(earlier), judge.agreed.get(target, {}), after, observed)
