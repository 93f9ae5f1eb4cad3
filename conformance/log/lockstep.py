"""`Lockstep`: a live backend with the specification beside it; the first difference raises."""

from collections import deque
from collections.abc import Callable
from typing import Any

import kvproof.spec
from kvproof.spec.clauses import CLAUSES

from ..backends.loading import Backend, load_backend
from ..calls.readings import page_views
from .argument_texts import materialised
from .calls import CALLS, PROPERTIES, LoggedCall
from .comparing import Difference, compare_answers, compare_states
from .entries import Operation
from .sides import Answer, Thing
from .states import read_state
from .translating import SpecificationArguments
from .values import KeyNumbers, kind_of, result

__all__ = ["Lockstep", "LockstepError"]

_SAMPLED = {
    *("get_num_free_pages", "get_usage", "pins_of", "get_priority", "get_cached_page", "num_pinned_pages"),
    *("slot_of", "get_page_ids", "get_num_common_prefix_pages", "usage", "counters"),
    *("slot_mapping", "update_slices"),
}
"""Calls that leave everything as it is, so that the specification need not hear of all of them."""

_KEPT = 8
"""So many calls before the faulty one are shown."""


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

    Every call that changes anything is made on both, its result and its refusal are compared, and the first
    difference raises `LockstepError`. With ``every=1`` the whole observable state is compared after each call, which
    costs O(pages); with ``every=n`` after each n-th one, and of the calls that only read each n-th one is compared. The
    specification itself is slow, some 100 us a token: where that is too much, `record` and replay instead.

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
        self._every = every

    def CacheManager(self, *args: Any, **options: Any) -> Any:  # noqa: N802 - the backend's name
        """A manager of the backend beside one of the specification; ``hash_seed`` is the same for both."""
        options.setdefault("hash_seed", b"lockstep")
        return self._pair("CacheManager", args, options)

    def PagePool(self, *args: Any, **options: Any) -> Any:  # noqa: N802
        """A pool of the backend beside one of the specification; ``hash_seed`` is the same for both."""
        options.setdefault("hash_seed", b"lockstep")
        return self._pair("PagePool", args, options)

    def PageTable(self, *args: Any, **options: Any) -> Any:  # noqa: N802
        """A table of the backend beside one of the specification."""
        return self._pair("PageTable", args, options)

    def MultiGroupPageTable(self, *args: Any, **options: Any) -> Any:  # noqa: N802
        """Tables of the backend beside those of the specification."""
        return self._pair("MultiGroupPageTable", args, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._holder, name)

    def _pair(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        args = tuple(map(materialised, args))
        backend = Backend("the backend", self._holder)
        known = {option: value for option, value in options.items() if backend.accepts(name, option)}
        if options.keys() - known.keys() - {"hash_seed"}:
            known = options  # which the backend refuses, as it should
        it = backend.get(name)(*args, **known)
        own = {option: value for option, value in options.items() if option != "sharding"}
        if name == "CacheManager":  # one that shows no interval keeps all pages (RET-1)
            own.setdefault("retention_interval", getattr(it, "retention_interval", None))
        spec = getattr(kvproof.spec, name)(*args, **own)
        return _wrap(_Watch(name, it, spec, self._every), name, it, spec)


class _Watch:
    """Compares two objects, their parts included.

    Args:
        name: their class.
        it: the backend's.
        spec: the specification's.
        every: calls from one comparison of their states to the next.
    """

    def __init__(self, name: str, it: Any, spec: Any, every: int) -> None:
        self._name, self._it, self._spec, self._every = name, it, spec, every
        pools = [whole.page_pool if name == "CacheManager" else whole for whole in (it, spec)]
        has_pages = name in ("CacheManager", "PagePool")
        views, own = [page_views(pool) if has_pages else {} for pool in pools]
        self._views, self._own = views, own
        self.arguments = SpecificationArguments(own, spec)
        self._keys = KeyNumbers(), KeyNumbers()
        self._calls: deque[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = deque(maxlen=_KEPT + 1)
        self._live: dict[str, None] = {}
        self._since: list[tuple[LoggedCall, Answer]] = []
        self._reads = 0
        self._before: dict[str, Any] = {}
        self._compare(None)

    def call(
        self, name: str, method: str, act: Callable[..., Any], mirror: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Makes a call on both, compares, and returns what the backend returned or raises what it raised."""
        call = CALLS[name].get(method) or PROPERTIES[name][method]
        if method in _SAMPLED:
            self._reads += 1
            if self._reads % self._every:
                return act(*map(bare, args), **{option: bare(value) for option, value in kwargs.items()})
        args = tuple(map(materialised, args))
        kwargs = {option: materialised(value) for option, value in kwargs.items()}
        self._calls.append((name, method, args, kwargs))
        own_args, own_kwargs = self.arguments.of(call, args, kwargs)
        expected = self._answer(call, 1, lambda: mirror(*own_args, **own_kwargs))
        error: Exception | None = None
        returned: Any = None
        try:
            returned = act(*map(bare, args), **{option: bare(value) for option, value in kwargs.items()})
        except Exception as raised:
            error = raised
        observed = Answer(error=kind_of(error), message=str(error)) if error is not None else self._read(call, returned)
        self.arguments.learn(call, method, args, kwargs, expected.returned)
        operation = Operation(0, 0, method, {})
        self._judge(compare_answers(Thing(name, None, {}, 0), operation, expected, observed))
        self._note(args, kwargs)
        if not call.reads:
            self._since.append((call, expected))
            if len(self._since) >= self._every:
                self._compare(self._since[0] if len(self._since) == 1 else None)
        if error is not None:
            raise error
        return returned

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            request_id = getattr(value, "request_id", None)
            if isinstance(request_id, str):
                self._live[request_id] = None

    def _answer(self, call: LoggedCall, side: int, act: Callable[[], Any]) -> Answer:
        try:
            returned = act()
            return Answer(result(call.result, returned, self._keys[side]), returned=returned)
        except Exception as error:
            return Answer(error=kind_of(error), message=str(error))

    def _read(self, call: LoggedCall, returned: Any) -> Answer:
        return self._answer(call, 0, lambda: returned)

    def _states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        live = list(self._live)
        shown = [
            read_state(self._name, whole, views, live, device=True)
            for whole, views in ((self._spec, self._own), (self._it, self._views))
        ]
        for request_id in live:
            if not any(
                any(state["pages of requests"].get(request_id, ())) for state in shown if "pages of requests" in state
            ):
                del self._live[request_id]
        return shown[0], shown[1]

    def _compare(self, last: tuple[LoggedCall, Answer] | None) -> None:
        self._since.clear()
        expected, observed = self._states()
        self._judge(compare_states(expected, observed, last), expected, observed)
        self._before = expected

    def _judge(
        self,
        difference: Difference | None,
        expected: dict[str, Any] | None = None,
        observed: dict[str, Any] | None = None,
    ) -> None:
        if difference is None:
            return
        if expected is None or observed is None:
            expected, observed = self._states()
        lines = [_line(*call) for call in self._calls] or ["its construction"]
        raise LockstepError(difference, lines[-1], tuple(lines[:-1]), self._before, expected, observed)


def bare(value: Any) -> Any:
    """An argument as the backend knows it."""
    own = getattr(value, "__dict__", None)
    return value if own is None else own.get("_kvproof_thing", value)


def _wrap(watch: _Watch, name: str, it: Any, spec: Any) -> "_Paired":
    paired = (_PairedTables if name == "MultiGroupPageTable" else _Paired)(watch, name, it, spec)
    if name == "CacheManager":
        paired.__dict__["page_pool"] = _wrap(watch, "PagePool", it.page_pool, spec.page_pool)
    if name == "MultiGroupPageTable":
        both = zip(it.page_tables, spec.page_tables, strict=True)
        paired.__dict__["page_tables"] = [_wrap(watch, "PageTable", *tables) for tables in both]
    return paired


class _Paired:
    """An object of the backend, its calls made on the specification's, too."""

    def __init__(self, watch: _Watch, name: str, it: Any, spec: Any) -> None:
        own = self.__dict__
        own |= {"_kvproof_watch": watch, "_kvproof_name": name, "_kvproof_thing": it, "_kvproof_spec": spec}
        for method in CALLS[name]:
            if hasattr(it, method):
                own[method] = _paired_call(watch, name, method, getattr(it, method), getattr(spec, method))

    def __getattr__(self, attribute: str) -> Any:
        own = self.__dict__
        name, it, spec = own["_kvproof_name"], own["_kvproof_thing"], own["_kvproof_spec"]
        if attribute in PROPERTIES[name] and hasattr(it, attribute) and not callable(getattr(it, attribute)):
            read = own["_kvproof_watch"].call
            return read(name, attribute, lambda: getattr(it, attribute), lambda: getattr(spec, attribute), (), {})
        return getattr(it, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._kvproof_thing, attribute, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._kvproof_thing)

    def __repr__(self) -> str:
        return f"{self._kvproof_thing!r} in lockstep"


class _PairedTables(_Paired):
    def __len__(self) -> int:
        return len(self._kvproof_thing)

    def __getitem__(self, group: int) -> Any:
        table = self._kvproof_thing[group]  # which refuses what is no group
        return next(own for own in self.page_tables if own._kvproof_thing is table)


def _paired_call(
    watch: _Watch, name: str, method: str, act: Callable[..., Any], mirror: Callable[..., Any]
) -> Callable[..., Any]:
    def paired(*args: Any, **kwargs: Any) -> Any:
        return watch.call(name, method, act, mirror, args, kwargs)

    return paired


def _line(name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A call on one line, requests by their ids."""
    if method in PROPERTIES[name]:
        return f"{name}.{method}"
    given = [_shown(value) for value in args] + [f"{option}={_shown(value)}" for option, value in kwargs.items()]
    return f"{name}.{method}({', '.join(given)})"


def _shown(value: Any) -> str:
    request_id = getattr(value, "request_id", None)
    text = repr(value) if request_id is None else f"<request {request_id!r}>"
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:120]} ..."
