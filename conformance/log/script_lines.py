"""A log that deviates as the body of a test: plain Python calls on the backend, and one last statement that fails."""

import inspect
from collections.abc import Iterator
from typing import Any

import kvproof.spec
from kvproof.spec.declarations import EngineRequestStatus, Request

from ..emitting import Script
from ..emitting.literals import Literals
from .call_lines import object_name
from .calls import CALLS, LoggedCall
from .entries import Grown, Made, NewKeys, NewRequest, Operation
from .shrinking import Try
from .sides import Answer

__all__ = ["script_of"]

_READ = {
    "hit": "([list(group) for group in given[0].get_page_ids()], given[1])",
    "groups": "given if given is None else [list(group) for group in given.get_page_ids()]",
    "pages": "given if given is None else [page.page_id for page in given]",
    "copies": "[list(copy) for copy in given]",
    "pin": "given if given is None else [given.pin_id, given.num_tokens, "
    "[list(group) for group in given.pages.get_page_ids()]]",
    "plan": "given if given is None else [given.swap_id, given.direction, [list(copy) for copy in given.copies]]",
    "batch": "(given.granted.tolist(), [given.get_page_ids(place) for place in range(len(given.granted))])",
    "array": "given.tolist()",
    "events": "[(type(event).__name__, getattr(event, 'page_id', None)) for event in given]",
    "counters": "(given.requests, given.queried_tokens, given.hit_tokens, given.evictions, given.preemptions)",
}
"""How a result is read, by its kind, as values that can be compared."""

_OPTIONAL = {
    *("num_new_computed_tokens", "new_computed_pages", "num_lookahead_tokens", "delay_cache_pages"),
    *("tables", "rows", "num_written", "num_tokens", "expires_at"),
}
"""Arguments whose default is 0, False or None."""

_FREE = "[page.page_id for page in {pool}.free_page_queue.get_all_free_pages()]"
_FIELDS = {
    "free pages": _FREE,
    "ref_cnt": "{{str(n): page.ref_cnt for n, page in {pages}.items() if n and page.ref_cnt}}",
    "hashed pages": "[n for n, page in sorted({pages}.items()) if n and page.page_hash is not None]",
    "cached map": "sorted([key.group_id, [page.page_id for page in (own.values() if hasattr(own, 'values') else own)]] "
    "for key, own in {pool}.cached_page_hash_to_page.items())",
    "usage": "round({pool}.get_usage(), 9)",
    "pages of requests": "{{name: groups for name in {names} "
    "if any(groups := [list(group) for group in {whole}.get_page_ids(name)])}}",
    "pages in a row": "[table.num_pages_per_row.tolist() for table in {tables}]",
    "host rows": "[table.get_cpu_tensor().tolist() for table in {tables}]",
    "device rows": "[table.get_device_tensor().tolist() for table in {tables}]",
}
"""How a field of a state is read."""


def script_of(found: Try, backend: str, holder: Any, found_by: str) -> Script:
    """The test of a log that was made short.

    Args:
        found: the shortest try.
        backend: the backend's name.
        holder: what holds its public names.
        found_by: the command that found it.

    Raises:
        UnrenderableError: an argument has no form in Python's source.
    """
    writer = _Writer(found, Literals(holder))
    lines, last, raises = writer.written()
    return Script(
        found.difference.clause,
        found.difference.expected,
        found.difference.observed,
        backend,
        tuple(lines),
        last,
        raises,
        tuple(writer.literals.imports.values()),
        found_by=found_by,
    )


class _Writer:
    """Writes the lines.

    Args:
        found: the try.
        literals: writes values.
    """

    def __init__(self, found: Try, literals: Literals) -> None:
        self.literals = literals
        self._found = found
        self._things = found.player.sides[0].things
        self._lines: list[str] = []
        self._tokens: dict[int, list[int]] = {}
        self._said: dict[int, tuple[Any, int, bool]] = {}
        self._requests: dict[int, NewRequest] = {}
        self._hits: dict[int, str] = {}

    def written(self) -> tuple[list[str], int, str]:
        """The lines, how many of the last ones fail, and the error that they raise if it is none of an assertion."""
        answers = iter(zip(self._found.played, self._found.answers, strict=True))
        left = len(self._found.played)
        for entry in self._found.entries:
            match entry:
                case Made():
                    self._made(entry)
                case NewRequest():
                    self._requests[entry.number] = entry
                    self._tokens[entry.number] = entry.tokens.tolist()
                case Grown():
                    self._tokens[entry.number][entry.start :] = entry.tokens.tolist()
                case NewKeys() if entry.number in self._said:
                    self._lines.append(f"request_{entry.number}.extra_keys = {self.literals.of(entry.extra_keys)}")
                case Operation():
                    operation, (expected, observed) = next(answers)
                    left -= 1
                    self._tell(operation)
                    if not left:
                        return self._ending(operation, expected, observed)
                    self._call(operation, expected)
                case _:
                    continue
        raise AssertionError("a try ends with the operation that deviates")

    def _made(self, made: Made) -> None:
        name = object_name(made.number, self._things)
        if "of" in made.arguments:
            whole = object_name(made.arguments["of"], self._things)
            group = made.arguments.get("group", 0)
            part = "page_pool" if made.name == "PagePool" else f"page_tables[{group}]"
            self._lines.append(f"{name} = {whole}.{part}")
            return
        parameters = inspect.signature(getattr(kvproof.spec, made.name)).parameters
        given = {name: value for name, value in made.arguments.items() if parameters[name].default != value}
        if made.name in ("CacheManager", "PagePool"):
            given["hash_seed"] = b"kvproof log"
        shown = ", ".join(f"{argument}={self.literals.of(value)}" for argument, value in given.items())
        self._lines.append(f"{name} = backend.{made.name}({shown})")
        if made.name in ("CacheManager", "PagePool"):
            pool = f"{name}.page_pool" if made.name == "CacheManager" else name
            listed = f"[{pool}.null_page, *{pool}.free_page_queue.get_all_free_pages()]"
            self._lines.append(f"{name}_pages = {{page.page_id: page for page in {listed}}}")

    def _tell(self, operation: Operation) -> None:
        """Lines that bring requests to what they say at a call."""
        for number, known in operation.told:
            computed, _, running = self._said.get(number, (0, 0, False))
            self._say(number, computed, known, running)
        for name in ("request", "origin"):
            told = operation.arguments.get(name)
            if isinstance(told, dict) and "r" in told:
                computed, _, is_running = self._said.get(told["r"], (0, 0, False))
                if operation.method == "allocate_slots":  # the one call that reads them
                    computed = told.get("computed", 0)
                self._say(told["r"], computed, told.get("known", 0), is_running)
        numbers = operation.arguments.get("running")
        if isinstance(numbers, list):
            for number, (computed, known, _) in list(self._said.items()):
                self._say(number, computed, known, number in numbers)

    def _say(self, number: int, computed: Any, known: int, running: bool) -> None:
        name, tokens, made = f"request_{number}", self._tokens[number], self._requests[number]
        before = self._said.get(number)
        if before is None:
            self.literals.imports["Request"] = f"from {Request.__module__} import Request"
            rest = "" if not made.extra_keys else f", {self.literals.of(made.extra_keys)}"
            rest += "" if made.prompt_logprobs is None else f", prompt_logprobs={made.prompt_logprobs}"
            self._lines.append(f"{name} = Request({made.request_id!r}, {tokens[:known]!r}{rest})")
            before = 0, known, False
        if known > before[1]:
            self._lines += [f"for token in {tokens[before[1] : known]!r}:", f"    {name}.append(token)"]
        elif known < before[1]:
            self._lines.append(f"{name}.num_tokens = {known}")
        if computed != before[0]:
            self._lines.append(f"{name}.num_computed_tokens = {self.literals.of(computed)}")
        if running != before[2]:
            status = EngineRequestStatus.RUNNING if running else EngineRequestStatus.WAITING
            self._lines.append(f"{name}.status = {self.literals.of(status)}")
        self._said[number] = computed, known, running

    def _call(self, operation: Operation, expected: Answer) -> None:
        call = self._expression(operation)
        if expected.error is not None:
            self._lines += [f"with pytest.raises({expected.error}):", f"    {call}"]
        elif operation.method == "get_computed_pages":
            number = operation.arguments["request"]["r"]
            self._hits[number] = f"found_{number}"
            self._lines.append(f"found_{number}, _ = {call}")
        else:
            self._lines.append(call)

    def _ending(self, operation: Operation, expected: Answer, observed: Answer) -> tuple[list[str], int, str]:
        call = self._expression(operation)
        if self._found.field:
            reading = _FIELDS[self._found.field]
            last = self._field(operation, reading)
            self._call(operation, expected)
            return [*self._lines, last], 1, ""
        if expected.error is not None:
            lines = [f"with pytest.raises({expected.error}):", f"    {call}"]
            return [*self._lines, *lines], 2, observed.error or ""
        if observed.error is not None:
            return [*self._lines, call], 1, observed.error
        kind = CALLS[self._things[operation.target].name].get(operation.method)
        reading = _READ.get("counters" if kind is None else kind.result, "given")
        value = self._value("plain" if kind is None else kind.result, expected)
        lines = [f"given = {call}", f"assert ({reading}) == {value}"]
        return [*self._lines, *lines], 2, ""

    def _value(self, kind: str, expected: Answer) -> str:
        """What the specification returned, as `_READ` reads it."""
        given = expected.returned
        if kind == "batch":
            read: Any = (given.granted.tolist(), [given.get_page_ids(place) for place in range(len(given.granted))])
        elif kind == "hit":
            read = tuple(expected.value)
        elif kind == "events":
            read = [(type(event).__name__, getattr(event, "page_id", None)) for event in given]
        elif kind == "array":
            read = given.tolist()
        else:
            read = expected.value
        return self.literals.of(read)

    def _field(self, operation: Operation, reading: str) -> str:
        tables = operation.arguments.get("tables")
        of_tables = "row" in self._found.field
        number = tables["k"] if of_tables and isinstance(tables, dict) else operation.target
        whole_number = self._things[number].whole
        whole = object_name(whole_number, self._things)
        name = self._things[whole_number].name
        parts = {
            "pool": f"{whole}.page_pool" if name == "CacheManager" else whole,
            "pages": f"{whole}_pages",
            "names": self.literals.of(self._found.player.ids),
            "whole": whole,
            "tables": f"{whole}.page_tables" if name == "MultiGroupPageTable" else f"[{whole}]",
        }
        side = self._found.player.sides[0]
        value = side.state(number, self._found.player.ids, device=of_tables)[self._found.field]
        return f"assert {reading.format(**parts)} == {self.literals.of(value)}"

    # -- Expressions ------------------------------------------------------------------------------

    def _expression(self, operation: Operation) -> str:
        thing = self._things[operation.target]
        target = object_name(operation.target, self._things)
        call = CALLS[thing.name].get(operation.method)
        if call is None:
            return f"{target}.{operation.method}"
        return f"{target}.{operation.method}({', '.join(self._arguments(call, operation))})"

    def _arguments(self, call: LoggedCall, operation: Operation) -> Iterator[str]:
        """The arguments but for those that are as they are by default: the first ones by place, the rest by name."""
        by_name = False
        for name, kind in call.arguments.items():
            value = operation.arguments.get(name, 0)
            if name not in operation.arguments or (name in _OPTIONAL and value in (0, None)):
                by_name = True
                continue
            by_name = by_name or name in call.row.by_name
            shown = self._argument(operation, kind, value)
            yield f"{name}={shown}" if by_name else shown

    def _argument(self, operation: Operation, kind: str, value: Any) -> str:
        if isinstance(value, dict) and "type" in value:
            return "object()"
        pages = f"{object_name(self._things[operation.target].whole, self._things)}_pages"
        match kind:
            case "request":
                return f"request_{value['r']}"
            case "pages" if isinstance(value, list):
                return f"[{', '.join(f'{pages}[{page!r}]' for page in value)}]"
            case "groups" if isinstance(value, list):
                return f"[{', '.join(self._argument(operation, 'pages', group) for group in value)}]"
            case "hits" if value is not None:
                known = self._hits.get(operation.arguments["request"]["r"])
                if known is not None:
                    return known
                groups = ", ".join(self._argument(operation, "pages", group) for group in value)
                return f"backend.CachePages([{groups}])"
            case "tables" if value is not None:
                return object_name(value["k"], self._things)
            case "keys" | "key" if isinstance(value, dict):
                return self._keys(operation, value)
            case _:
                return self.literals.of(value)

    def _keys(self, operation: Operation, value: dict[str, Any]) -> str:
        """Keys of a request's pages, as the backend makes them."""
        if value.get("key", ()) is None:
            return "backend.PageHash(b'no key of any page', (), None)"
        pool = object_name(operation.target, self._things)
        told: Any = operation.arguments.get("origin", operation.arguments.get("request"))
        size = value["key"][1] if "key" in value else operation.arguments.get("page_size")
        made = (
            f"list(backend.hash_request_tokens({pool}.hash_function, {self.literals.of(size)}, "
            f"request_{told['r']}, none_hash={pool}.none_hash))"
        )
        return f"{made}[{value['key'][0]}]" if "key" in value else f"{made}[: {value['keys']}]"
