"""The secrets machine: what errors, printed objects, events and documents show, and hostile text among request ids."""

import functools
import json
import traceback
import types
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.clauses import clause_of_message
from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter, Request

from ..calls.deviation import attempt
from .base import SPEC, Both, Field, Machine, Nothing, Side
from .draws import Drawing
from .properties import start, step
from .worlds import Group

__all__ = ["Secrets"]


def damaged_documents() -> list[tuple[str, Callable[[Any], Any]]]:
    """Readings of damaged metadata: each as a report shows it, and what makes it on a side."""
    return [
        (
            f"RaggedPagesCacheMetaData.from_json(<metadata, {what}>)",
            functools.partial(_read, text),
        )
        for what, text in _damaged_texts().items()
    ]


def _read(text: str, side: Any) -> Any:
    return side.names.get("RaggedPagesCacheMetaData").from_json(text)


@functools.cache
def _damaged_texts() -> dict[str, str]:
    metadata = SPEC.get("RaggedPagesCacheMetaData")(
        num_hidden_layers=1,
        max_model_length=8,
        num_kv_heads=2,
        k_headdim=64,
        v_headdim=64,
        page_size=4,
        num_pages=3,
    )
    good: dict[str, Any] = json.loads(metadata.to_json())
    changed: dict[str, dict[str, Any]] = {
        "of a later format": good | {"format": 2},
        "of format True": good | {"format": True},
        "of format '1'": good | {"format": "1"},
        "of another kind": good | {"kind": "RaggedPagesMetadata"},
        "of a kind that names code": good | {"kind": "os.system"},
        "with a field more": good | {"__class__": "object"},
        "with a field less": {name: value for name, value in good.items() if name != "num_pages"},
        "without a format": {name: value for name, value in good.items() if name != "format"},
    }
    texts = {what: json.dumps(document) for what, document in changed.items()}
    return texts | {
        "cut off": json.dumps(good)[:-1],
        "nothing": "",
        "nested without end": "[" * 100_000,
    }


_SALTS = ("the salt of tenant one, 5f0c", "the salt of tenant two, 91be")

_TOKENS = (1_234_567_891, 1_987_654_321)
"""Two tokens that nothing else is taken for."""

_IDS = (
    "",
    "a\nb\r\0c",
    "\x1b[31mred\x07\x9b2J",
    "<script>alert(1)</script>",
    "'\"`\\{0}%s$(x)",
    "\u202etxt.exe\u2028",
    "\ud800 alone",
    "None",
    "../../etc/passwd",
    "long" * 1500,
)
"""Ids that break out of what they are written into: terminals, HTML, quotes, formats, encodings, paths."""

_LORA = "\x1b]0;title\x07<b>"

_KEY = SPEC.get("PageHashWithGroupId")(SPEC.get("PageHash")(b"digest", _TOKENS, (CacheSalt(_SALTS[0]),)), 0)
"""A key, which knows its tokens."""

_SIZE, _PAGES, _LENGTH = 2, 40, 12


class Secrets(Machine):
    """Requests with salts and hostile ids on a manager with room for all; no policy shows in what is compared.

    A side has its ``manager`` and the ``pool`` of it; None where a manager shows none, as one over a tree may not.
    """

    name = "secrets"
    levels = frozenset({"exact", "safe"})
    examples, num_steps = 24, 16
    needs: ClassVar[tuple[str, ...]] = ("CacheManager", "CachePages")
    always = frozenset({"R1", "SEC-2", "SEC-4"})

    @start()
    def construct(self) -> None:
        """A manager that tells what it does and lets prefixes be pinned, as far as the backend can."""
        self.requests: dict[str, Request] = {}
        self.known: dict[str, Request] = {}
        self.live: list[str] = []
        self.given: dict[str, tuple[Both, Both]] = {}
        wanted = {"enable_events": True, "max_pinned_pages": 4, "max_pinned_pages_per_salt": 1}
        accepts = functools.partial(self.backend.names.accepts, "CacheManager")
        self.options = {name: value for name, value in wanted.items() if accepts(name)}

        def act(side: Side) -> dict[str, Any]:
            group = Group("full", _SIZE).declared(0, side.names, self.spec.names)
            manager = side.names.get("CacheManager")(_PAGES, [group], _LENGTH, True, **self.options)
            return {"manager": manager, "pool": getattr(manager, "page_pool", None)}

        shown = "".join(f", {name}={value}" for name, value in self.options.items())
        self.build(f"manager = CacheManager({_PAGES}, [full({_SIZE})], {_LENGTH}, True{shown})", "SEC-4", act)
        self.watch(Field("numbers of pages of requests", "SEC-4", self.read_lengths))

    def read_lengths(self, side: Any) -> dict[str, list[int]]:
        """How many pages each request holds."""
        return {name: [len(group) for group in side.manager.get_page_ids(name)] for name in self.requests}

    # -- What is told -------------------------------------------------------------------------------------------

    def tell(self, line: str, act: Callable[[Any], Any], clause: str = "SEC-4", normal: Any = None) -> Both:
        """Makes a call on both sides; what the backend's error says or its result prints is looked through."""
        told: list[tuple[str, str, bool]] = []
        refusing = ""

        def acting(side: Any) -> Any:
            nonlocal refusing
            try:
                result = act(side)
            except BaseException as error:
                if side is self.spec:
                    refusing = clause_of_message(str(error))
                else:
                    told.append(("the error", "".join(traceback.format_exception_only(error)), True))
                    told.extend(("an error before it", str(other), True) for other in _causes(error))
                raise
            if side is not self.spec:
                told.append(("the result", repr(result), False))
            return result

        made = self.call(line, acting, clause, normal or (lambda *_: None))
        if made.refused and not told and self.session.gives_bad_input and refusing not in self.session.known:
            # Who refuses what is not looked at, but what the refusal says.
            self.calls.append(line)
            with self.watched(refusing, "a refusal"):
                refused = attempt(functools.partial(acting, self.backend)).error is not None
            if not refused:
                self.differ(refusing, "a refusal", "none")
        for what, text, is_error in told:
            self.hold_text(what, text, is_error)
        return made

    def hold_text(self, what: str, text: str, strict: bool) -> None:
        """Holds that a text shows no salt; a strict one no token, no fingerprint and no control character either."""
        self.compared("SEC-2")
        if any(salt in text for salt in _SALTS):
            self.differ("SEC-2", f"{what} shows no salt", "it shows the text of one")
        if not strict:
            return
        self.compared("SEC-4")
        if any(str(token) in text for token in _TOKENS):
            self.differ("SEC-2", f"{what} shows no token ids", "it shows one")
        if any(shown in text for shown in _fingerprints()):
            self.differ("SEC-2", f"{what} shows no fingerprint of a salt", "it shows one")
        if not text.rstrip("\n").isprintable():
            self.differ("SEC-4", f"{what} shows ids by repr", f"control characters in {text[:200]!r}")

    # -- Requests -----------------------------------------------------------------------------------------------

    @step(when=lambda self: len(self.live) < 4, weight=3)
    def admit(self, data: Drawing) -> None:
        """A request comes and gets slots, perhaps with a salt and an adapter; its id is a name like any other."""
        name = data.one_of([known for known in _IDS if known not in self.live])
        tokens = data.draw(st.lists(st.sampled_from(_TOKENS), min_size=1, max_size=_LENGTH - 2))
        salt: tuple[ExtraKey, ...] = data.one_of([(CacheSalt(text),) for text in _SALTS] + [()])
        extra_keys = (*salt, LoraAdapter(_LORA)) if data.rarely() else salt
        request = self.requests[name] = self.known[name] = Request(name, tokens, extra_keys)
        self.calls.append(f"request = Request({_short(name)}, {tokens}, {extra_keys})")
        found = self.tell("manager.get_computed_pages(request)", lambda side: side.manager.get_computed_pages(request))

        def act(side: Side) -> Any:
            pages, hit = self.result_on(side, found)
            return side.manager.allocate_slots(request, len(tokens) - hit, hit, pages)

        new = self.tell("manager.allocate_slots(request, <the rest>, <what was found>)", act)
        self.given[name] = Both(found.spec[0], found.backend[0]), new
        self.live.append(name)

    @step(when=lambda self: self.live)
    def go_on(self, data: Drawing) -> None:
        """A request decodes a token, or is freed."""
        name = data.one_of(self.live)
        request = self.requests[name]
        if request.num_tokens < _LENGTH and data.one_of([True, False]):
            request.num_computed_tokens = request.num_tokens
            request.append(data.one_of(_TOKENS))
            self.tell(
                f"manager.allocate_slots({_short(name)}, 1)", lambda side: side.manager.allocate_slots(request, 1)
            )
            return
        self.tell(f"manager.free({_short(name)})", lambda side: side.manager.free(request))
        self.live.remove(name)
        request.num_computed_tokens = 0

    @step("MAN-2", "MAN-3", "MAN-6", "MAN-8", "PIN-1", "POOL-5", "POOL-7", when=lambda self: self.live, weight=4)
    def misuse(self, data: Drawing) -> None:
        """Calls with one fault that know a request's id, its tokens or its salt: the refusal tells none but the id."""
        name = data.one_of(self.live)
        acts = self.bad_calls(name, self.requests[name], _short(name))
        line = data.one_of(list(acts))
        self.tell(line, acts[line])

    def bad_calls(self, name: str, request: Request, shown: str) -> dict[str, Callable[[Any], Any]]:
        """Calls that must be refused, each as a report shows it."""
        other = Request(name, [*map(int, request.all_token_ids), _TOKENS[0]], request.extra_keys)
        unlike = [token for token in _TOKENS if token != int(request.all_token_ids[0])]
        waiting = Request("waiting", unlike * 3, request.extra_keys)
        nested = types.SimpleNamespace(
            request_id=name,
            all_token_ids=[[*_TOKENS], float(_TOKENS[0])],
            num_tokens=2,
            num_computed_tokens=0,
            status=request.status,
            extra_keys=request.extra_keys,
            sampling_params=None,
        )
        acts: dict[str, Callable[[Any], Any]] = {
            f"manager.allocate_slots({shown}, {_LENGTH + 1})": lambda side: side.manager.allocate_slots(
                request, _LENGTH + 1
            ),
            f"manager.get_computed_pages(<another request {shown}>)": lambda side: side.manager.get_computed_pages(
                other
            ),
            f"manager.allocate_slots(<another request {shown}>, 1)": lambda side: side.manager.allocate_slots(other, 1),
            "manager.allocate_slots(waiting, 1, 2, <a page of another request>)": lambda side: (
                side.manager.allocate_slots(waiting, 1, 2, self.foreign_pages(side, name))
            ),
            "manager.allocate_slots(<no request but its tokens>, 1)": lambda side: side.manager.allocate_slots(
                _TOKENS, 1
            ),
            f"manager.allocate_slots({shown}, <its tokens>)": lambda side: side.manager.allocate_slots(
                request, list(_TOKENS)
            ),
            "manager.allocate_slots(<a request whose tokens are lists>, 1)": lambda side: side.manager.allocate_slots(
                types.SimpleNamespace(**vars(nested) | {"request_id": "nested"}), 1
            ),
        }
        if self.backend.pool is not None:
            acts["manager.page_pool.free_pages([<a key>])"] = lambda side: side.pool.free_pages([_KEY])
        if self.offers("manager", "cache_pages"):
            acts[f"manager.cache_pages({shown}, {_LENGTH})"] = lambda side: side.manager.cache_pages(request, 99)
            acts["manager.cache_pages(waiting, 1)"] = lambda side: side.manager.cache_pages(waiting, 1)
        if not self.lacks("views"):
            acts["page.page_hash = <a key>"] = lambda side: setattr(self.first_page(side, name), "page_hash", _KEY)
        if "max_pinned_pages_per_salt" in self.options and not self.lacks("pins") and request.num_tokens >= 2 * _SIZE:
            acts[f"manager.pin_prefix({shown}), again and again"] = lambda side: [
                side.manager.pin_prefix(request) for _ in range(9)
            ]
        return acts

    def first_page(self, side: Any, name: str) -> Any:
        """The first page of a request."""
        return next(page for part in self.given[name] for page in self.result_on(side, part).pages[0])

    def foreign_pages(self, side: Any, name: str) -> Any:
        """The first page of a request, as another one's hit."""
        return side.names.get("CachePages")(([self.first_page(side, name)],))

    # -- Looking ------------------------------------------------------------------------------------------------

    @step("SEC-2")
    def print_everything(self, _: Drawing) -> None:
        """What is printed, told in events, counted or written to a snapshot: no salt is in it."""
        self.calls.append("print(manager, manager.page_pool, ...)")
        whole, pool = self.backend.manager, self.backend.pool
        shown = {"the manager": repr(whole)} | ({} if pool is None else {"the pool": repr(pool)})
        requests = {name: attempt(functools.partial(whole.get_page_ids, name)).value for name in self.requests}
        shown["the pages of requests"] = repr(requests)
        if hasattr(whole, "counters"):
            shown["the counters"] = repr(whole.counters)
        if "enable_events" in self.options and not self.lacks("events"):
            events = list(whole.take_events())
            self.hold_text("a printed event", repr(events), strict=True)
        if hasattr(whole, "snapshot") and not self.lacks("snapshots"):
            shown["the snapshot"] = json.dumps(whole.snapshot())
        for what, text in shown.items():
            self.hold_text(what, text, strict=False)

    # -- Documents ----------------------------------------------------------------------------------------------

    def has_snapshots(self) -> bool:
        """Whether the backend's managers can be written and read back."""
        offered = self.offers("manager", "snapshot") and self.offers("manager", "restore")
        return offered and not self.lacks("snapshots")

    @step("SEC-3", when=lambda self: self.requests and self.has_snapshots())
    def reload(self, _: Drawing) -> None:
        """A manager that is written and read back holds together, whatever the ids and the extra keys in it are."""

        def act(side: Side) -> Any:
            shot = json.loads(json.dumps(side.manager.snapshot()))
            manager = side.names.get("CacheManager").restore(shot, list(self.known.values()))
            if hasattr(manager, "check"):
                manager.check()
            return [[len(group) for group in manager.get_page_ids(name)] for name in self.requests]

        line = "CacheManager.restore(json.loads(json.dumps(manager.snapshot())), requests).check()"
        self.tell(line, act, "SEC-3", lambda lengths, _: lengths)

    @step("SEC-3")
    def read_documents(self, data: Drawing) -> None:
        """Documents of another kind or version, with fields too many or too few, or that are none, are refused."""
        line, act = data.one_of(damaged_documents())
        if not self.backend.names.offers("RaggedPagesCacheMetaData") or self.lacks("caches"):
            self.session.lacks.add("RaggedPagesCacheMetaData")
            raise Nothing
        self.tell(line, act, "SEC-3")


def _short(name: str) -> str:
    """An id as a report shows it."""
    return repr(name) if len(name) < 80 else f"{name[:8]!r} * {len(name) // 4}"


def _causes(error: BaseException) -> list[BaseException]:
    """What an error's traceback prints before it."""
    found: list[BaseException] = []
    while True:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None or before in found:
            return found
        found.append(before)
        error = before


@functools.cache
def _fingerprints() -> tuple[str, ...]:
    """The ways in which the fingerprints of the salts may be shown."""
    prints = [CacheSalt(text).fingerprint for text in _SALTS]
    return tuple(shown for known in prints for shown in (known.hex(), repr(known)[2:-1]))
