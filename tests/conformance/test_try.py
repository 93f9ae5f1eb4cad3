"""`kvproof try`: calls written by hand, and calls as JSON."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kvproof.fast
import kvproof.spec
from kvproof.conformance import load_backend
from kvproof.conformance.calls.arrays import ATTENTION
from kvproof.conformance.calls.datum import Call, Hashed, Key, Minus, Pages, Prompt, Ref, Saying, Slot, Spelled
from kvproof.conformance.calls.documents import calls_from_json, calls_to_json, parsed_ref, value_to_json
from kvproof.conformance.calls.interfaces import BUILDS, FUNCTIONS, TABLES_BY_OWNER
from kvproof.conformance.calls.spelling import Spelling
from kvproof.conformance.cli import main
from kvproof.conformance.machines.batch import Batch
from kvproof.conformance.machines.pool import PoolPins
from kvproof.conformance.machines.queue import Queue
from kvproof.conformance.machines.sides import Both
from kvproof.conformance.machines.swap import Swap
from kvproof.conformance.machines.table import MultiTable, Table
from kvproof.conformance.search.runner import run_machine
from kvproof.conformance.trying.script import read_script
from kvproof.spec import CacheSalt, PageStored

from .broken import FreesBackwards

# -- JSON --------------------------------------------------------------------------------------------------------------

PROMPT = Prompt((1, -1), (CacheSalt("s"),), Spelling.TUPLE, "a")
VALUES: tuple[Any, ...] = (
    *(None, True, 3, -0.5, "text", b"\0\xff", float("inf"), (1, (2,)), [[], [1]], {"a": (1,), 2: None}),
    *(
        Minus(9, Ref(2, (1,))),
        Ref(3, (0, ".page_id", ":2")),
        Ref("pool", (".free_page_queue",)),
        Ref(1, (2,), Ref("pages", (4,))),
    ),
    *(Saying(Ref("a"), (("num_computed_tokens", 4), ("extra_keys", ()))), Slot(Ref("manager"), "a")),
    *(Pages(((Ref(3, (0, ".pages", 1, ":2")),), [Ref("pages", (0,))])), Prompt((1,), logprobs=1)),
    *(
        Spelled(Spelling.COLUMN64, (1, Ref(2))),
        PROMPT,
        Key(PROMPT, 2, 0),
        Key(PROMPT, 2, 0, True, 1),
        Hashed(PROMPT, 2, b"s"),
    ),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array([[1, 2]], np.int32), np.zeros((0, 3), np.float32)),
    kvproof.spec.EngineRequestStatus.RUNNING,
    kvproof.spec.CacheGroupSpec(kvproof.spec.FullAttentionSpec(2, 1, 8, "float32"), ("layer",)),
    PageStored(0, 1, b"a", None, (1, 2), None),
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | np.generic):
        return type(one) is type(other) and one.dtype == other.dtype and bool(np.array_equal(one, other))
    return type(one) is type(other) and bool(one == other)


def through_a_file(calls: list[Call]) -> list[Call]:
    return calls_from_json(json.loads(json.dumps(calls_to_json(calls))))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_is_read_is_what_was_written(value: Any) -> None:
    (call,) = through_a_file([Call(Ref("pool"), "touch", {"pages": value}, 7, "pages", refused=True)])
    assert (call.target, call.method, call.number, call.fault, call.refused) == (Ref("pool"), "touch", 7, "pages", True)
    assert same(call.arguments["pages"], value)
    otherwise = getattr(value, "otherwise", None)
    assert getattr(call.arguments["pages"], "otherwise", None) == otherwise, "what no comparison looks at"


MADE_FOR_ONE_CALL = ("StrangePage", "Declared", "Described", "OtherTables")


@pytest.mark.parametrize(
    "machine", [PoolPins, Queue, Table, MultiTable, Batch, Swap], ids=lambda machine: str(machine.name)
)
def test_every_call_that_is_drawn_can_be_written(machine: Any) -> None:
    """But for those with what is made for one call."""
    drawn = 0

    def make_call(self: Any, call: Call) -> Both:
        nonlocal drawn
        drawn += 1
        if any(name in repr(call) for name in MADE_FOR_ONE_CALL):
            with pytest.raises(TypeError, match=f"({'|'.join(MADE_FOR_ONE_CALL)}), which no file of calls can hold"):
                through_a_file([call])
        else:
            (read,) = through_a_file([call])
            assert repr(read) == repr(call)
        both: Both = machine.make_call(self, call)
        return both

    written: Any = type("Written", (machine,), {"make_call": make_call})
    report = run_machine(written, load_backend("kvproof.fast"), 0, examples=5)
    assert not report.deviations, [str(found) for found in report.deviations]
    assert drawn > 50


def test_sec_2_no_salt_stands_in_a_file() -> None:
    text = json.dumps(value_to_json(Prompt((1,), (CacheSalt("a secret salt"),))))
    assert "a secret salt" not in text


def test_what_no_file_can_hold_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"<object object .* is a object, which no file of calls can hold"):
        value_to_json([object()])


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ({"kvproof": "log", "version": 1, "calls": []}, "kvproof must be 'calls', not 'log'"),
        ({"kvproof": "calls", "version": 2, "calls": []}, "version must be 1"),
        ({"calls": []}, "must be an object with the keys"),
        ("calls", "calls must be a list"),
        ([3], r"calls\[0\] must be a call"),
        ([{"target": "r1"}], r"calls\[0\] must be an object with the key 'method'"),
        ([{"method": "a", "args": {}}], r"calls\[0\] has a key 'args'; a call has target, method, arguments"),
        ([{"method": "a", "arguments": [1]}], r"calls\[0\].arguments must be an object"),
        ([{"method": "a", "target": "3r"}], r"calls\[0\].target must name a result or an object, .* not '3r'"),
        ([{"method": "a", "arguments": {"n": {"page": 1}}}], r"calls\[0\].arguments.n must have one of the keys ref"),
        ([{"method": "a", "arguments": {"n": {"ref": "r1", "to": 2}}}], "has a key 'to' that says nothing beside"),
        ([{"method": "a", "arguments": {"n": {"list": [1], "as": "SET"}}}], r"arguments.n.as must be one of .* 'SET'"),
        ([{"method": "a", "arguments": {"n": {"array": [1], "dtype": "O"}}}], r"arguments.n.dtype must be one of"),
        ([{"method": "a", "arguments": {"n": {"array": ["x"]}}}], r"arguments.n.array must be numbers"),
        ([{"method": "a", "number": 2}, {"method": "b"}], r"calls\[1\].number is 2, as that of a call before it"),
    ],
)
def test_what_is_no_sequence_of_calls_is_refused_by_its_place(calls: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calls_from_json(calls)


def test_a_name_of_a_result_is_read_as_it_is_shown() -> None:
    for ref in (Ref(3), Ref(3, (0, 1)), Ref("pool", (".a", 2)), Ref(1, (":2", 0))):
        assert parsed_ref(str(ref)) == ref
    for text in ("", "3", "r1[", "r1[x]", "r1..a", "a b"):
        assert parsed_ref(text) is None


# -- Files in Python ---------------------------------------------------------------------------------------------------

EVERYTHING = """
from kvproof.fast import *  # a file may be Python that runs

pool = PagePool(6, True)
pages = pool.get_new_pages(num_pages=3)
pool.free_pages([pages[0], pages[0]])                               # refused
pool.cache_full_pages(Request("a", [1, 2]), [pages[0]], [], 0, 1, 2, 0)
pool.evict_pages(np.array([1, 2], np.int32))
pool.touch([iter([pages[0], pages[1]]), pages[:2]])
pool.free_page_queue.popleft()
pages[0].ref_cnt = 3
page = CachePage(1)
queue = FreeCachePageQueue([page])
queue.popleft()
layers = FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
manager = CacheManager(9, [CacheGroupSpec(layers)], max_model_len=32, max_pinned_pages=2)
a = Request("a", list(range(5)), (CacheSalt("salt"),))
found, hit = manager.get_computed_pages(a)
manager.allocate_slots(a, 5 - hit, hit, found)
a.num_computed_tokens = 5
a.append(2 ** 3 - 1)
a.status = EngineRequestStatus.RUNNING
manager.allocate_slots(a, 1, delay_cache_pages=True)
manager.allocate_slots_batch([manager.slot_of("a")], [6], 1)
manager.usage
manager.page_pool.get_usage()
tables = MultiGroupPageTable(8, 64, 32, [2])
tables.add_row(manager.get_page_ids("a"), 0)
tables[0].commit(1)
manager.pin_prefix(a, 4)
manager.free(a)
shards = ShardedCacheManager(2, 9, [CacheGroupSpec(layers)], max_model_len=32)
shards.allocate_slots(Request("b", [1]), 1)
"""
DEVICE = """
queries = np.ones((3, 2, 128), np.float32) * 0.5
cached = np.ones((4, 2, 2, 128), np.float32)
ids = np.array([[1, 2]], np.int32)
one = np.array([1], np.int32)
ends = np.array([0, 3], np.int32)
ragged_paged_attention(queries, cached, np.array([3], np.int32), ids, ends, one)
key = hash_page_tokens(sha256, None, [1, 2])
hash_page_tokens(sha256, key.hash_value, (3, 4))
poison = np.full((4, 2, 2, 128), float("nan"), np.float32)
new = np.ones((3, 1, 128), np.float32)
fused_ragged_paged_attention(queries, new, new, poison, np.array([3], np.int32), ids, ends, one)
kv_cache_update(poison, new, new, np.array([3, 4, -1], np.int32))
copy_pages(cached, np.array([1], np.int32), np.array([2], np.int32))
"""
SHARDS = """
layers = FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
shards = ShardedCacheManager(2, 9, [CacheGroupSpec(layers)], max_model_len=32)
b = Request("b", [1, 2, 3])
shards.allocate_slots(b, 3)
shards.get_computed_pages(Request("c", [1, 2, 3]))
"""
RESTORED = """
layers = FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
manager = CacheManager(9, [CacheGroupSpec(layers)], max_model_len=32)
a = Request("a", [1, 2, 3])
manager.allocate_slots(a, 3)
again = CacheManager.restore(manager.snapshot(), [a])
again.free(a)
again.page_pool.get_new_pages(8)
"""


@pytest.fixture
def tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(text: str, *options: str, name: str = "calls.py") -> tuple[int, str, str]:
        file = tmp_path / name
        file.write_text(text)
        status = main(["try", str(file), *options])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("a_backward_backend")
    module.__dict__.update({"PagePool": FreesBackwards})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


Tried = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("text", [EVERYTHING, DEVICE, SHARDS, RESTORED], ids=["host", "device", "shards", "restored"])
@pytest.mark.parametrize("level", ["exact", "safe"])
@pytest.mark.parametrize("backend", ["kvproof.fast", "kvproof.spec"])
def test_our_own_backends_conform(tried: Tried, backend: str, level: str, text: str) -> None:
    status, out, err = tried(text, "--backend", backend, "--level", level)
    assert (status, err) == (0, ""), out
    assert "undecided" not in out
    assert ("  both           an object of class " in out) == (text is not DEVICE), "pages are arrays there"
    assert ("page 1 mentioned 2 times" in out) == (text is EVERYTHING)


def test_the_first_call_that_deviates_is_told_with_the_states(tried: Tried, backwards: str, tmp_path: Path) -> None:
    text = "pool = PagePool(4, True)\npages = pool.get_new_pages(2)\n\npool.free_pages(pages)\npool.get_new_pages(1)\n"
    report = tmp_path / "said.json"
    status, out, _ = tried(text, "--backend", backwards, "--json", str(report))
    assert status == 1
    assert (
        "line 4: pool.free_pages(pages)\n  specification  None\n  backend        None\n  after it, free pages\n" in out
    )
    assert f"deviates       POOL-5: {kvproof.spec.CLAUSES['POOL-5'].sentence}" in out or "deviates       POOL-3" in out
    said = json.loads(report.read_text())
    assert (said["kvproof"], said["version"], said["deviates"], said["not_made"]) == ("try", 1, True, 1)
    assert [call["verdict"] for call in said["calls"]] == ["conforms", "conforms", "deviates"]
    assert said["calls"][2]["differences"] == {"free pages": {"expected": "[3, 1, 2]", "observed": "[3, 2, 1]"}}
    assert tried(text, "--backend", backwards, "--level", "safe")[0] == 0, "another order of eviction"


def test_a_wrong_result_and_a_missing_refusal_are_told(tried: Tried) -> None:
    text = "pool = PagePool(4, True)\npages = pool.get_new_pages(1)\npool.free_pages([pages[0], pages[0]])\n"
    bug = "kvproof.conformance.catalogue:negative_get_new_pages"
    status, out, _ = tried(f"{text}pool.get_new_pages(-1)\n", "--backend", bug)
    assert status == 1
    assert "no refusal, but" in out
    assert "deviates       " in out


def test_cache_3_the_numbers_of_an_array_are_compared_at_both_levels(tried: Tried) -> None:
    text = """
pages = np.zeros((3, 2, 2, 128), np.float32)
ones = np.ones((1, 1, 128), np.float32)
kv_cache_update(pages, ones, ones, np.array([[5], [0], [1]], np.int32), num_slices=np.array([1], np.int32))
"""
    bug = "kvproof.conformance.catalogue:slice_moved_to_fit_in"
    for level in ("exact", "safe"):
        status, out, _ = tried(text, "--backend", bug, "--level", level)
        assert status == 1, out
        assert "CACHE-3" in out


def test_calls_as_json_say_the_same(tried: Tried) -> None:
    text = "pool = PagePool(4, True)\npages = pool.get_new_pages(2)\npool.free_pages([pages[0]])\npool.get_usage()\n"
    calls = json.dumps(calls_to_json(entry.call for entry in read_script(text)))
    status, out, _ = tried(calls, name="calls.json")
    assert status == 0
    assert "calls[2]: r3 = r1.free_pages(ordered_pages=[r2[0]])\n" in out
    verdicts = [line for line in out.splitlines() if line.startswith("  ")]
    assert verdicts == [line for line in tried(text)[1].splitlines() if line.startswith("  ")]


def test_every_function_of_the_interface_is_known() -> None:
    functions = {name for name in dir(kvproof.spec) if inspect.isfunction(getattr(kvproof.spec, name))}
    assert functions == FUNCTIONS.keys() | ATTENTION.inner.keys()


def test_everything_that_is_constructed_is_known() -> None:
    assert BUILDS.keys() == TABLES_BY_OWNER.keys()


POOL = "pool = PagePool(4, True)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool = PagePool(4, Tru)", "line 1: Tru is a name that was not given before"),
        ("\nfor i in range(3): pass", "line 2: 'for i in range(3): pass' is no call"),
        (f"{POOL}pool.get_new_page(2)", "line 2: pool: a pool has no get_new_page; did you mean get_new_pages?"),
        (f"{POOL}pool.get_new_pages(2, 3)", "line 2: get_new_pages takes 1 arguments by position, not 2: num_pages"),
        (f"{POOL}pool.get_new_pages(n=2)", "line 2: get_new_pages has no argument n; there are num_pages"),
        (f"{POOL}pool.get_new_pages(2, num_pages=2)", "line 2: get_new_pages: num_pages is given twice"),
        (f"{POOL}pool.get_usage = 2", "line 2: get_usage cannot be set"),
        (f"{POOL}pool.free_pages([*pages])", "line 2: *pages is no value"),
        (f"{POOL}pool.free_pages(*[])", "line 2: arguments must be written one by one"),
        (f"{POOL}r = pool.get_new_pages(1)\npool.free_pages([r[3]])", "line 3: there is no r2[3] on the side of"),
        ("import os\nos.system('ls')", "line 2: os is a name that was not given before"),
        ("x = __import__('os')", "line 1: __import__ is no class, function or method of the interface"),
        ("x = [0] * 10**9", "line 1: [0] * 10 ** 9 has more than 1000000 entries"),
        ("x = 9**9**9", "line 1: 9 ** 9 ** 9: an exponent must be an int from 0 to 64"),
        ("x = range(10**9)", "line 1: range(10 ** 9) has more than 1000000 entries"),
        ("x = np.zeros((10**5, 10**5))", "line 1: np.zeros((10 ** 5, 10 ** 5)) has more than 1000000 entries"),
        ("pool = PagePool(2**30)", "line 1: num_pages=1073741824: a file of calls makes at most 1048576"),
        ("x = np.load('file')", "line 1: np.load is not known here"),
        ("x = CacheSalt(1, 2)", "line 1: CacheSalt(1, 2): TypeError: "),
        ("a = Request(1, [1])", "line 1: Request: request_id=1 must be a text"),
        ("a = Request('a', [1.5])", "line 1: Request: token_ids=[1.5] must be a list of ints"),
        ("(((", "line 1: this is no Python: '(' was never closed"),
        ("x = " + "-" * 100_000 + "1", "nested too deep"),
        ("# nothing\n", "no calls"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_its_line(tried: Tried, text: str, message: str) -> None:
    status, _, err = tried(text)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "Expecting value"),
        ("[" * 100_000, "nested too deep"),
        ('[{"method": "PagePol"}]', "calls[0]: there is no class or function PagePol; did you mean PagePool?"),
        ('[{"target": "r1", "method": "touch", "arguments": {"page": 1}}]', "calls[0]: r1: a page has no touch"),
    ],
)
def test_json_that_makes_no_sense_is_refused_by_its_entry(tried: Tried, text: str, message: str) -> None:
    status, _, err = tried(text, name="calls.json")
    assert status == 2
    assert message in err


def test_what_cannot_be_had_is_said(tried: Tried, tmp_path: Path) -> None:
    assert main(["try", str(tmp_path / "nowhere.py")]) == 2
    assert "there is no module" in tried(POOL, "--backend", "no_such_module")[2]
    assert "there are groups" in tried(POOL, "--without", "wings")[2]
    assert (
        "line 1: the backend kvproof.spec.clauses does not offer PagePool"
        in tried(POOL, "--backend", "kvproof.spec.clauses")[2]
    )
