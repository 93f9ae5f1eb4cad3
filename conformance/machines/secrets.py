"""The secrets machine: what errors, printed objects, events and documents show, and hostile text among request ids."""

import functools
import json
import traceback
import types
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.clauses import clause_of_message
from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter, Request

from ..calls.datum import Call, Described, Minus, Pages, Ref
from ..calls.deviation import attempt
from ..calls.interfaces import plain_row
from ..calls.manager import MANAGER
from ..calls.method import Kind, Method, Table
from ..calls.pool import POOL
from ..calls.queue import PAGE
from .base import SPEC, Both, Field, Nothing, Side
from .calling import Calling
from .draws import Drawing
from .properties import start, step
from .sides import unread
from .snapshots import OwnSnapshot
from .worlds import Group

__all__ = ["Secrets"]


@functools.cache
def damaged_documents() -> tuple[Described, ...]:
    """Texts of metadata that are none."""
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
    texts |= {"cut off": json.dumps(good)[:-1], "nothing": "", "nested without end": "[" * 100_000}
    return tuple(Described(text, f"metadata, {what}") for what, text in texts.items())


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

_KEY = Described(
    SPEC.get("PageHashWithGroupId")(SPEC.get("PageHash")(b"digest", _TOKENS, (CacheSalt(_SALTS[0]),)), 0), "a key"
)
"""A key, which knows its tokens."""

_MANY_PINS = 9
"""More pins of one prefix than the managers take."""

_UNREAD = Kind(plain=unread)

_SIZE, _PAGES, _LENGTH = 2, 40, 12

_METADATA = Table("metadata", "RaggedPagesCacheMetaData", (plain_row("from_json", ("json_str",)),))


class Secrets(Calling):
    """Requests with salts and hostile ids on a manager with room for all; no policy shows in what is compared.

    A side has its ``manager``, the ``pool`` of it, which is None where a manager shows none, as one over a tree may
    not, the requests by their ids, and the class of ``metadata`` if the backend has it.

    Attributes:
        told: what the backend told in the call that was made last: what it is, its text, and whether it is an error.
        refusing: the clause by which the specification refused it.
    """

    name = "secrets"
    levels = frozenset({"exact", "safe"})
    examples, num_steps = 24, 16
    needs: ClassVar[tuple[str, ...]] = ("CacheManager", "CachePages")
    always = frozenset({"R1", "SEC-2", "SEC-4"})
    tables = (MANAGER, POOL, PAGE, _METADATA)
    records_calls = False
    told: list[tuple[str, str, bool]]
    refusing: str

    @start()
    def construct(self) -> None:
        """A manager that tells what it does, pins prefixes and swaps requests out, as far as the backend can."""
        self.requests: dict[str, Request] = {}
        self.live: list[str] = []
        self.first_pages: dict[str, Ref] = {}
        wanted = {
            "enable_events": True,
            "max_pinned_pages": 4,
            "max_pinned_pages_per_salt": 1,
            "num_host_pages": _PAGES,
        }
        self.options = self.options_taken("CacheManager", wanted)
        flags = self.backend.names.flags("CacheManager", True)

        def act(side: Side) -> dict[str, Any]:
            group = Group("full", _SIZE).declared(0, side.names, self.spec.names)
            manager = side.names.get("CacheManager")(_PAGES, [group], _LENGTH, *flags, **self.options)
            has_metadata = side.names.offers("RaggedPagesCacheMetaData") and not self.lacks("caches")
            metadata = side.names.get("RaggedPagesCacheMetaData") if has_metadata else None
            return {"manager": manager, "pool": getattr(manager, "page_pool", None), "metadata": metadata}

        shown = "".join(
            [*(f", {flag}" for flag in flags), *(f", {name}={value}" for name, value in self.options.items())]
        )
        self.build(f"manager = CacheManager({_PAGES}, [full({_SIZE})], {_LENGTH}{shown})", "SEC-4", act)
        self.watch(Field("numbers of pages of requests", "SEC-4", self.read_lengths))

    def read_lengths(self, side: Any) -> dict[str, list[int]]:
        """How many pages each request holds."""
        return {name: [len(group) for group in side.manager.get_page_ids(name)] for name in self.requests}

    # -- Calls --------------------------------------------------------------------------------------------------

    @classmethod
    def row_of_call(cls, call: Call) -> tuple[Table, Method]:
        """See `Calling.row_of_call`: of results nothing is compared but what they print."""
        table, row = super().row_of_call(call)
        return table, replace(row, result=_UNREAD, clause=call.about or "SEC-4", charges={}, where=None, blame=None)

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """See `Calling.perform`: what the backend's error says, or what its result prints, is kept."""
        try:
            result = super().perform(side, call, row)
        except BaseException as error:
            if side is self.spec:
                self.refusing = clause_of_message(str(error))
            else:
                self.told = [("the error", "".join(traceback.format_exception_only(error)), True)]
                self.told += (("an error before it", str(other), True) for other in _causes(error))
            raise
        if side is self.backend:
            self.told = [("the result", repr(result), False)]
        return result

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: what the backend tells is looked through."""
        self.told, self.refusing = [], ""
        made = super().make_call(call)
        if made.refused and not self.told and self.session.gives_bad_input and self.refusing not in self.session.known:
            # Who refuses what is not looked at, but what the refusal says.
            row = self.row_of_call(call)[1]
            self.calls.append(self.line(call, row))
            with self.watched(self.refusing, "a refusal"):
                refused = attempt(functools.partial(self.perform, self.backend, call, row)).error is not None
            if not refused:
                self.differ(self.refusing, "a refusal", "none")
        for what, text, is_error in self.told:
            self.hold_text(what, text, is_error)
        return made

    def show(self, ref: Ref) -> str:
        """See `Calling.show`: an id is a name like any other."""
        return _short(ref.of) if ref.of in self.requests else super().show(ref)

    def of_manager(self, method: str, **arguments: Any) -> Call:
        """A call on the managers."""
        return self.call_of(method, Ref("manager"), **arguments)

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
        request = self.requests[name] = Request(name, tokens, extra_keys)
        self.calls.append(f"request = Request({_short(name)}, {tokens}, {extra_keys})")
        for side in (self.spec, self.backend):
            side.put({name: request})
        look_up = self.of_manager("get_computed_pages", request=Ref(name))
        hit = int(self.make_call(look_up).spec[1])
        found = Ref(look_up.number)
        hits = {"num_new_computed_tokens": found.to(1), "new_computed_pages": found.to(0)}
        new = Minus(len(tokens), found.to(1))
        allocation = self.of_manager("allocate_slots", request=Ref(name), num_new_tokens=new, **hits)
        self.make_call(allocation)
        self.first_pages[name] = (found.to(0) if hit else Ref(allocation.number)).to(".pages", 0, 0)
        self.live.append(name)

    @step(when=lambda self: self.live)
    def go_on(self, data: Drawing) -> None:
        """A request decodes a token, or is freed."""
        name = data.one_of(self.live)
        request = self.requests[name]
        if request.num_tokens < _LENGTH and data.one_of([True, False]):
            request.num_computed_tokens = request.num_tokens
            request.append(data.one_of(_TOKENS))
            self.make_call(self.of_manager("allocate_slots", request=Ref(name), num_new_tokens=1))
            return
        self.free(name)

    def free(self, name: str) -> None:
        """A request goes, and may come again from its first token on."""
        self.make_call(self.of_manager("free", request=Ref(name)))
        self.live.remove(name)
        self.requests[name].num_computed_tokens = 0

    @step("MAN-6", "SWAP-1", when=lambda self: self.live and self.swaps())
    def change_on_host(self, data: Drawing) -> None:
        """A request is swapped out and its tokens or its salt change: the refusal to take it back tells neither."""
        name = data.one_of(self.live)
        request = self.requests[name]
        request.num_computed_tokens = request.num_tokens
        leaves = self.of_manager("swap_out", request=Ref(name))
        made = self.make_call(leaves)
        if made.refused or made.spec is None or made.backend is None:
            return
        self.make_call(self.of_manager("swap_done", swap_id=Ref(leaves.number).to(".swap_id")))
        tokens, keys = request.all_token_ids, request.extra_keys
        if data.one_of([True, False]):
            tokens[0] = next(token for token in _TOKENS if token != tokens[0])
            self.calls.append(f"request.all_token_ids[0] = {tokens[0]}")
        else:
            others = [salt for text in _SALTS if (salt := CacheSalt(text)) not in keys]
            request.extra_keys = (data.one_of(others), *(key for key in keys if not isinstance(key, CacheSalt)))
            self.calls.append(f"request.extra_keys = {request.extra_keys}")
        self.make_call(self.of_manager("swap_in", request=Ref(name)))
        request.extra_keys = keys
        self.free(name)

    def swaps(self) -> bool:
        """Whether the backend's managers swap requests out."""
        methods = ("swap_out", "swap_in", "swap_done")
        return "num_host_pages" in self.options and all(self.offers("manager", method) for method in methods)

    @step("MAN-2", "MAN-3", "MAN-6", "MAN-8", "PIN-1", "POOL-5", "POOL-7", when=lambda self: self.live, weight=4)
    def misuse(self, data: Drawing) -> None:
        """Calls with one fault that know a request's id, its tokens or its salt: the refusal tells none but the id."""
        name = data.one_of(self.live)
        call = data.one_of(self.bad_calls(name, self.requests[name]))
        for _ in range(_MANY_PINS if call.method == "pin_prefix" else 1):
            if self.make_call(call).refused:
                break

    def bad_calls(self, name: str, request: Request) -> list[Call]:
        """Calls that must be refused, a pin where it is asked for again and again."""
        of_manager, known = self.of_manager, Ref(name)
        tokens = list(map(int, request.all_token_ids))
        other = Described(Request(name, [*tokens, _TOKENS[0]], request.extra_keys), f"another request {_short(name)}")
        unlike = [token for token in _TOKENS if token != tokens[0]]
        waiting = Described(Request("waiting", unlike * 3, request.extra_keys), "a request that waits")
        nested = types.SimpleNamespace(
            request_id="nested",
            all_token_ids=[[*_TOKENS], float(_TOKENS[0])],
            num_tokens=2,
            num_computed_tokens=0,
            status=request.status,
            extra_keys=request.extra_keys,
            sampling_params=None,
        )
        of_lists = Described(nested, "a request whose tokens are lists")
        page = self.first_pages[name]
        hits = {"num_new_computed_tokens": 2, "new_computed_pages": Pages(((page,),))}
        calls = [
            of_manager("allocate_slots", request=known, num_new_tokens=_LENGTH + 1),
            of_manager("get_computed_pages", request=other),
            of_manager("allocate_slots", request=other, num_new_tokens=1),
            of_manager("allocate_slots", request=waiting, num_new_tokens=1, **hits),
            of_manager("allocate_slots", request=Described(_TOKENS, "no request but its tokens"), num_new_tokens=1),
            of_manager("allocate_slots", request=known, num_new_tokens=list(_TOKENS)),
            of_manager("allocate_slots", request=of_lists, num_new_tokens=1),
        ]
        if self.backend.pool is not None:
            calls.append(self.call_of("free_pages", Ref("pool"), ordered_pages=[_KEY]))
        if self.offers("manager", "cache_pages"):
            calls.append(of_manager("cache_pages", request=known, num_computed_tokens=99))
            calls.append(of_manager("cache_pages", request=waiting, num_computed_tokens=1))
        if not self.lacks("views"):
            calls.append(self.call_of("page_hash", page, page_hash=_KEY))
        if "max_pinned_pages_per_salt" in self.options and request.num_tokens >= 2 * _SIZE:
            calls.append(of_manager("pin_prefix", request=known))
        return calls

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
        if "enable_events" in self.options:
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
        requests = list(map(Ref, self.requests))
        restore = self.of_manager("restore", snapshot=OwnSnapshot(), requests=requests)
        restored = self.make_call(replace(restore, about="SEC-3"))
        lengths = self.lengths_of(restored.spec)
        self.check("SEC-3", "numbers of pages of requests", lengths, lambda: self.lengths_of(restored.backend))

    def lengths_of(self, manager: Any) -> dict[str, list[int]]:
        """How many pages each request holds by a manager that holds together."""
        if hasattr(manager, "check"):
            manager.check()
        return {name: [len(group) for group in manager.get_page_ids(name)] for name in self.requests}

    @step("SEC-3")
    def read_documents(self, data: Drawing) -> None:
        """Documents of another kind or version, with fields too many or too few, or that are none, are refused."""
        damaged = data.one_of(damaged_documents())
        if self.backend.metadata is None:
            self.session.lacks.add("RaggedPagesCacheMetaData")
            raise Nothing
        self.make_call(replace(self.call_of("from_json", Ref("metadata"), json_str=damaged), about="SEC-3"))


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
