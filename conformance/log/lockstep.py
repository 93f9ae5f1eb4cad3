"""`Lockstep`: a live backend whose calls are recorded and at once replayed on the specification."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import kvproof.spec
from kvproof.spec.clauses import CLAUSES

from ..backends.loading import Backend, load_backend
from ..calls.judging import Difference
from .entries import Entry, Shown
from .format import CLASSES, LogError, row_of
from .player import UnplayableError
from .reading import EntryReader
from .recorded_calls import materialised
from .recording import Recorded, arguments_of, wrapped
from .replaying import Judge
from .writer import LogWriter

__all__ = ["Lockstep", "LockstepError"]

_SAMPLED = {
    *("get_num_free_pages", "get_usage", "pins_of", "get_priority", "get_cached_page", "num_pinned_pages"),
    *("slot_of", "get_page_ids", "get_num_common_prefix_pages", "usage", "counters"),
    *("slot_mapping", "update_slices"),
}
"""Calls that leave everything as it is, so that the specification need not hear of all of them."""


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

    Every call that changes anything is recorded as `record` records it and at once made on the specification, its
    result and its refusal are compared, and the first difference raises `LockstepError`. With ``every=1`` the whole
    observable state is compared after each call, which costs O(pages); with ``every=n`` after each n-th one, and of the
    calls that only read each n-th one is compared. The specification itself is slow, some 100 us a token: where that is
    too much, `record` and replay instead.

    Args:
        backend: the backend's public names: a module, an object, or its name as on the command line.
        every: calls from one comparison of the state to the next.

    Raises:
        ValueError: ``every`` is below 1.
        BackendError: there is no backend of that name.
    """

    def __init__(self, backend: Any, every: int = 1) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r} must be an int of at least 1")
        if isinstance(backend, str):
            backend = load_backend(backend)
        self._holder = backend.holder if isinstance(backend, Backend) else backend
        self._beside = _Beside(every)

    def CacheManager(self, *args: Any, **options: Any) -> Any:  # noqa: N802 - the backend's name
        """A manager of the backend beside one of the specification; ``hash_seed`` is the same for both."""
        return self._made("CacheManager", args, {"hash_seed": b"lockstep"} | options)

    def PagePool(self, *args: Any, **options: Any) -> Any:  # noqa: N802
        """A pool of the backend beside one of the specification; ``hash_seed`` is the same for both."""
        return self._made("PagePool", args, {"hash_seed": b"lockstep"} | options)

    def PageTable(self, *args: Any, **options: Any) -> Any:  # noqa: N802
        """A table of the backend beside one of the specification."""
        return self._made("PageTable", args, options)

    def MultiGroupPageTable(self, *args: Any, **options: Any) -> Any:  # noqa: N802
        """Tables of the backend beside those of the specification."""
        return self._made("MultiGroupPageTable", args, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._holder, name)

    def _made(self, name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Recorded:
        args = tuple(map(materialised, args))
        backend = Backend("the backend", self._holder)
        known = {option: value for option, value in options.items() if backend.accepts(name, option)}
        if options.keys() - known.keys() - {"hash_seed"}:
            known = dict(options)  # which the backend refuses, as it should
        it = backend.get(name)(*args, **known)
        needed, possible = CLASSES[name]
        given = dict(zip((*needed, *possible), args, strict=False)) | known
        told = {option: value for option, value in given.items() if option in (*needed, *possible)}
        recorded = wrapped(self._beside, name, it, arguments_of(name, it, told))
        self._beside.compare([recorded.__dict__["_kvproof_number"]])
        return recorded


class _Beside(LogWriter):
    """A log that is replayed on the specification as it is recorded.

    Args:
        every: calls from one comparison of states to the next.
    """

    most_noted = 1

    def __init__(self, every: int) -> None:
        super().__init__(show_tokens=True, redact=False, states_every=every)
        self._every, self._reads, self._changes = every, 0, 0
        self._reader, self._judge = EntryReader(bounded=False), Judge(kvproof.spec)

    def passes_over(self, method: str) -> bool:
        """See `LogWriter.passes_over`: of the calls that only read each n-th one is noted."""
        self._reads += method in _SAMPLED
        return method in _SAMPLED and self._reads % self._every != 0

    def note(self, entry: str) -> None:
        """See `LogWriter.note`: after each n-th call that changes anything states are compared."""
        super().note(entry)
        last = self._judge.last
        assert last is not None, "it was just made"
        self._changes += not row_of(self._judge.player.sides[0].things[last.target].name, last.method).reads
        if self._changes == self._every:
            self._changes = 0
            self.compare(self._judge.touched)

    def compare(self, numbers: Iterable[int]) -> None:
        """Compares what objects show now, by their numbers."""
        self.flush()
        for number in numbers:
            self._take(Shown(number, self.readers[number]()))

    def _is_state_due(self) -> bool:
        return False

    def _write(self, entries: list[str]) -> None:
        for text in entries:
            for entry in self._reader.read(json.loads(text)):
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        """Plays an entry; a difference raises."""
        self._judge.wrong = None
        try:
            self._judge.take(entry)
        except UnplayableError as error:
            raise LogError(f"the specification can't make this call: {error}") from error
        if self._judge.wrong is not None:
            raise self._deviation(*self._judge.wrong)

    def _deviation(self, difference: Difference, shown: Shown | None) -> LockstepError:
        judge = self._judge
        *earlier, call = judge.calls or ("its construction",)
        if shown is not None:
            target = shown.target
        else:
            assert judge.last is not None, "a call deviates"
            target = judge.player.sides[0].things[judge.last.target].whole
        observed = shown.fields if shown is not None else self.readers[target]()
        after = judge.state(target, device="device rows" in observed)
        return LockstepError(difference, call, tuple(earlier), judge.agreed.get(target, {}), after, observed)
