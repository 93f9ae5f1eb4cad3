"""Calls as JSON: the one form in which a sequence of calls is written into a file and read again.

A number, a text, true, false, null and a list stand for themselves. Any other value is an object that has one of the
keys of the table below, by which it is known: ``{"ref": "r2[0]"}`` is the first entry of what call 2 gave. What is read
is what was written, but for cache salts: of those there stand fingerprints (SEC-2), which are equal to them.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kvproof.spec.declarations import CacheCleared, CacheGroupSpec, EngineRequestStatus, PageRemoved, PageStored
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import (
    any_event_of,
    event_to_json,
    extra_keys_of,
    extra_keys_to_json,
    group_of,
    group_to_json,
)

from .datum import Call, Hashed, Key, Minus, Pages, Prompt, Ref, Saying, Slot, Spelled
from .spelling import Spelling

__all__ = ["MOST", "VERSION", "calls_from_json", "calls_to_json", "parsed_ref", "value_from_json", "value_to_json"]

VERSION = 1

MOST = {
    "num_pages": 1 << 20,
    "num_host_pages": 1 << 20,
    "max_model_len": 1 << 22,
    "max_num_reqs": 1 << 16,
    "max_num_pages_per_req": 1 << 20,
    "max_num_batched_tokens": 1 << 22,
}
"""The largest objects that a replay makes, and a file of calls, by the argument that says how large they are."""

_REF = re.compile(r"(?P<of>[A-Za-z_]\w*)(?P<path>(\[-?\d+\]|\[:\d+\]|\.[A-Za-z_]\w*)*)")
_STEP = re.compile(r"\[(-?\d+)\]|\[(:\d+)\]|(\.\w+)")
_NUMBERED = re.compile(r"r(\d+)")


def parsed_ref(text: str) -> Ref | None:
    """The `Ref` that a text such as ``r3[0].page_id`` or ``pool`` stands for; None if it stands for none."""
    found = _REF.fullmatch(text)
    if found is None:
        return None
    steps = _STEP.findall(found["path"])
    path = tuple(int(place) if place else part or attribute for place, part, attribute in steps)
    numbered = _NUMBERED.fullmatch(found["of"])
    return Ref(int(numbered[1]) if numbered else found["of"], path)


# -- Values ------------------------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """How values of some types are written, and how they are read.

    Attributes:
        types: the types.
        write: makes the object, which has the form's key.
        read: reads the object's members.
        more: the members that the object may have beside the form's key.
    """

    types: tuple[type, ...]
    write: Callable[[Any], dict[str, Any]]
    read: Callable[[dict[str, Part]], Any]
    more: tuple[str, ...] = ()


def _without_defaults(written: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Members of an object without those that say what is so anyway."""
    return {name: value for name, value in written.items() if name not in defaults or value != defaults[name]}


def _ref_of(part: Part) -> Ref:
    ref = parsed_ref(part.text())
    if ref is None:
        raise part.damaged(f"must name a result or an object, such as r2[0] or pool, not {part.value!r:.60}")
    return ref


def _ref_to_json(ref: Ref) -> dict[str, Any]:
    return {"ref": str(ref)} | ({} if ref.otherwise is None else {"otherwise": str(ref.otherwise)})


def _ref_from(members: dict[str, Part]) -> Ref:
    found = _ref_of(members["ref"])
    return Ref(found.of, found.path, _ref_of(members["otherwise"])) if "otherwise" in members else found


def _spelling_of(members: dict[str, Part], usual: Spelling) -> Spelling:
    part = members.get("as")
    if part is None:
        return usual
    if part.value not in Spelling.__members__:
        raise part.damaged(f"must be one of {', '.join(Spelling.__members__)}, not {part.value!r:.60}")
    return Spelling[part.text()]


def _spelled_from(members: dict[str, Part]) -> Spelled:
    values = tuple(value_from_json(entry) for entry in members["list"].items())
    return Spelled(_spelling_of(members, Spelling.LIST), values)


_PROMPT: dict[str, Any] = {"extra_keys": [], "as": Spelling.INT32.name, "logprobs": None}


def _prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    written = {
        "request": prompt.request_id,
        "tokens": list(map(int, prompt.tokens)),
        "extra_keys": extra_keys_to_json(tuple(prompt.extra_keys)),
        "as": prompt.how.name,
        "logprobs": prompt.logprobs,
    }
    return _without_defaults(written, _PROMPT)


def _prompt_from(members: dict[str, Part]) -> Prompt:
    tokens = np.frombuffer(members["tokens"].tokens(), "<i4").tolist() if "tokens" in members else []
    keys = (extra_keys_of(members["extra_keys"]) or ()) if "extra_keys" in members else ()
    how = _spelling_of(members, Spelling.INT32)
    logprobs = members["logprobs"].integer(minimum=0) if "logprobs" in members else None
    return Prompt(tuple(tokens), keys, how, members["request"].unicode(), logprobs)


def _saying_from(members: dict[str, Part]) -> Saying:
    said = _dict_from({"dict": members["says"]}) if "says" in members else {}
    return Saying(value_from_json(members["of_request"]), tuple(said.items()))


def _slot_from(members: dict[str, Part]) -> Slot:
    if "of_manager" not in members:
        raise members["slot_of"].damaged("must have 'of_manager' beside it")
    return Slot(_ref_of(members["of_manager"]), members["slot_of"].unicode())


def _minus_from(members: dict[str, Part]) -> Minus:
    if "number" not in members:
        raise members["minus"].damaged("must have 'number' beside it, from which it is taken")
    return Minus(members["number"].integer(), _ref_of(members["minus"]))


_KEY = {"made_by_hand": False, "group": None}


def _key_to_json(key: Key) -> dict[str, Any]:
    written = {"key": key.place, "of": _prompt_to_json(key.prompt), "page_size": key.page_size}
    return _without_defaults(written | {"made_by_hand": key.made_by_hand, "group": key.group}, _KEY)


def _require(members: dict[str, Part], name: str, *others: str) -> None:
    """Refuses the members of a value where others are missing beside the one that says of what kind it is."""
    for other in others:
        if other not in members:
            raise members[name].damaged(f"must have {other!r} beside it")


def _prompt_at(part: Part) -> Prompt:
    """The request that a part of a document describes; anything else is refused."""
    prompt = value_from_json(part)
    if not isinstance(prompt, Prompt):
        raise part.damaged("must be a request")
    return prompt


def _key_from(members: dict[str, Part]) -> Key:
    _require(members, "key", "of", "page_size")
    prompt = _prompt_at(members["of"])
    by_hand = "made_by_hand" in members and members["made_by_hand"].flag()
    group = None if "group" not in members or members["group"].value is None else members["group"].integer()
    return Key(prompt, members["page_size"].integer(minimum=1), members["key"].integer(), by_hand, group)


def _hashed_to_json(hashed: Hashed) -> dict[str, Any]:
    return {"keys_of": _prompt_to_json(hashed.prompt), "page_size": hashed.page_size, "seed": hashed.seed.hex()}


def _hashed_from(members: dict[str, Part]) -> Hashed:
    _require(members, "keys_of", "page_size", "seed")
    return Hashed(_prompt_at(members["keys_of"]), members["page_size"].integer(minimum=1), members["seed"].digest())


_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)


def _array_to_json(array: Any) -> dict[str, Any]:
    empty = {} if array.size else {"shape": list(array.shape)}
    return {"array": np.asarray(array).tolist(), "dtype": str(array.dtype), **empty}


def _array_from(members: dict[str, Part]) -> Any:
    dtype = members["dtype"].value if "dtype" in members else "int64"
    if dtype not in _DTYPES:
        raise members["dtype"].damaged(f"must be one of {', '.join(_DTYPES)}, not {dtype!r:.60}")
    try:
        made = np.array(members["array"].value, np.dtype(dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise members["array"].damaged(f"must be numbers of an array of {dtype}") from error
    if "shape" in members:
        shape = members["shape"].integers(below=2**31)
        if made.size or shape.prod():
            raise members["shape"].damaged("must be that of an array without entries")
        made = made.reshape(tuple(shape))
    return made if isinstance(members["array"].value, list) else made[()]


def _float_from(members: dict[str, Part]) -> float:
    if members["float"].value not in ("nan", "inf", "-inf"):
        raise members["float"].damaged("must be nan, inf or -inf")
    return float(members["float"].text())


def _dict_from(members: dict[str, Part]) -> dict[Any, Any]:
    pairs = [entry.items(2) for entry in members["dict"].items()]
    return {value_from_json(key): value_from_json(value) for key, value in pairs}


def _status_from(members: dict[str, Part]) -> EngineRequestStatus:
    if members["status"].value not in EngineRequestStatus.__members__:
        known = ", ".join(EngineRequestStatus.__members__)
        raise members["status"].damaged(f"must be one of {known}, not {members['status'].value!r:.60}")
    return EngineRequestStatus[members["status"].text()]


_FORMS: dict[str, _Form] = {
    "ref": _Form((Ref,), _ref_to_json, _ref_from, ("otherwise",)),
    "list": _Form(
        (Spelled,),
        lambda spelled: {"list": value_to_json(list(spelled.values)), "as": spelled.how.name},
        _spelled_from,
        ("as",),
    ),
    "request": _Form((Prompt,), _prompt_to_json, _prompt_from, ("tokens", "extra_keys", "as", "logprobs")),
    "of_request": _Form(
        (Saying,),
        lambda saying: {
            "of_request": value_to_json(saying.request),
            "says": [[name, value_to_json(value)] for name, value in saying.said],
        },
        _saying_from,
        ("says",),
    ),
    "pages": _Form(
        (Pages,),
        lambda pages: {"pages": value_to_json(pages.groups)},
        lambda members: Pages(value_from_json(members["pages"])),
    ),
    "slot_of": _Form(
        (Slot,),
        lambda slot: {"slot_of": slot.request_id, "of_manager": str(slot.manager)},
        _slot_from,
        ("of_manager",),
    ),
    "minus": _Form(
        (Minus,), lambda minus: {"minus": str(minus.less), "number": minus.number}, _minus_from, ("number",)
    ),
    "key": _Form((Key,), _key_to_json, _key_from, ("of", "page_size", "made_by_hand", "group")),
    "keys_of": _Form((Hashed,), _hashed_to_json, _hashed_from, ("page_size", "seed")),
    "tuple": _Form(
        (tuple,),
        lambda values: {"tuple": value_to_json(list(values))},
        lambda members: tuple(value_from_json(entry) for entry in members["tuple"].items()),
    ),
    "dict": _Form(
        (dict,),
        lambda values: {"dict": [[value_to_json(key), value_to_json(value)] for key, value in values.items()]},
        _dict_from,
    ),
    "bytes": _Form((bytes,), lambda value: {"bytes": value.hex()}, lambda members: members["bytes"].digest()),
    "float": _Form((float,), lambda value: {"float": str(value)}, _float_from),
    "array": _Form((np.ndarray, np.generic), _array_to_json, _array_from, ("dtype", "shape")),
    "status": _Form((EngineRequestStatus,), lambda status: {"status": status.name}, _status_from),
    "cache_group": _Form(
        (CacheGroupSpec,),
        lambda group: {"cache_group": group_to_json(group)},
        lambda members: group_of(members["cache_group"]),
    ),
    "event": _Form(
        (PageStored, PageRemoved, CacheCleared),
        lambda event: {"event": event_to_json(event)},
        lambda members: any_event_of(members["event"]),
    ),
}
"""How each sort of value is written, by the key by which it is known."""


def value_to_json(value: Any) -> Any:
    """A value of a call as JSON has it.

    Raises:
        TypeError: it is no value that a file can hold.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is list:
        return [value_to_json(entry) for entry in value]
    for base in type(value).__mro__:
        for form in _FORMS.values():
            if base in form.types:
                return form.write(value)
    raise TypeError(f"{value!r:.60} is a {type(value).__name__}, which no file of calls can hold")


def value_from_json(part: Part) -> Any:
    """Reads a value of a call.

    Raises:
        ValueError: it is no such value; the message says where it stands.
    """
    value = part.value
    if isinstance(value, list):
        return [value_from_json(entry) for entry in part.items()]
    if not isinstance(value, dict):
        return value
    names = [name for name in value if name in _FORMS]
    if len(names) != 1:
        raise part.damaged(
            f"must have one of the keys {', '.join(_FORMS)}, not {', '.join(map(repr, value)) or 'none'}"
        )
    form = _FORMS[names[0]]
    strange = [name for name in value if name not in (names[0], *form.more)]
    if strange:
        raise part.damaged(f"has a key {strange[0]!r} that says nothing beside {names[0]!r}")
    return form.read({name: part.member(name) for name in value})


# -- Calls -------------------------------------------------------------------------------------------------------------

_CALL = {"target": None, "fault": "", "refused": False, "about": ""}
_MEMBERS = ("target", "method", "arguments", "number", "fault", "refused", "about")


def calls_to_json(calls: Iterable[Call]) -> dict[str, Any]:
    """A sequence of calls as a document."""
    return {"kvproof": "calls", "version": VERSION, "calls": [_call_to_json(call) for call in calls]}


def _call_to_json(call: Call) -> dict[str, Any]:
    written = {
        "target": None if call.target is None else str(call.target),
        "method": call.method,
        "arguments": {name: value_to_json(value) for name, value in call.arguments.items()},
        "number": call.number,
        "fault": call.fault,
        "refused": call.refused,
        "about": call.about,
    }
    return _without_defaults(written, _CALL)


def calls_from_json(document: Any) -> list[Call]:
    """Reads a document of calls, or a bare list of them; a call without a number has that of its place, from 1 on.

    Raises:
        ValueError: it is no such document, or of a newer version; the message says where what is wrong stands.
    """
    if isinstance(document, dict):
        whole = Part("the file", document, "SEC-3").members(["kvproof", "version", "calls"])
        if whole["kvproof"].value != "calls":
            raise whole["kvproof"].damaged(f"must be 'calls', not {document['kvproof']!r:.60}")
        if whole["version"].value != VERSION:
            raise whole["version"].damaged(f"must be {VERSION}, the version that this kvproof reads")
        document = whole["calls"].value
    calls = [_call_from(part, place) for place, part in enumerate(Part("calls", document, "SEC-3").items(), 1)]
    numbers = [call.number for call in calls]
    twice = next((place for place, number in enumerate(numbers) if number in numbers[:place]), None)
    if twice is not None:
        raise Part(f"calls[{twice}].number", None, "SEC-3").damaged(f"is {numbers[twice]}, as that of a call before it")
    return calls


def _call_from(part: Part, place: int) -> Call:
    if not isinstance(part.value, dict):
        raise part.damaged(f"must be a call, an object with the key 'method', not {part.value!r:.60}")
    strange = [name for name in part.value if name not in _MEMBERS]
    if strange:
        raise part.damaged(f"has a key {strange[0]!r}; a call has {', '.join(_MEMBERS)}")
    given = {name: part.member(name) for name in part.value}
    arguments = part.member("arguments").value if "arguments" in given else {}
    if not isinstance(arguments, dict):
        raise given["arguments"].damaged("must be an object, each argument by its name")
    target = given.get("target")
    return Call(
        None if target is None or target.value is None else _ref_of(target),
        part.member("method").text(),
        {name: value_from_json(given["arguments"].member(name)) for name in arguments},
        given["number"].integer(minimum=1) if "number" in given else place,
        given["fault"].text() if "fault" in given else "",
        "refused" in given and given["refused"].flag(),
        given["about"].text() if "about" in given else "",
    )
