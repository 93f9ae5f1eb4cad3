"""Logs: what an engine did is recorded, replayed against the specification, redacted, cut, damaged, drawn."""

import json
import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof.fast
import kvproof.spec
from kvproof.conformance import LogError, catalogue, frames, record, replay_log
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.calls.deviation import attempt
from kvproof.conformance.cli import main
from kvproof.conformance.log.reading_calls import read_calls
from kvproof.spec.declarations import CacheSalt, Request

from .backends_under_test import radix
from .small_engine import GROUPS, SALT, SmallEngine, full

FAST = Backend("kvproof.fast", kvproof.fast)
LENGTH = 25
HEAD = '{"kvproof": "log", "version": 1}\n[["request",0,"r",'
"""How a log begins that tells of a request, up to its tokens."""


def recorded(path: Path, holder: Any = kvproof.fast, seed: int = 0, groups: str = "full", **options: Any) -> Path:
    """A log of a small engine; one whose backend fails ends where it does."""
    first: list[Any] = []

    def wrap(made: Any) -> Any:
        first.append(record(made, first[0] if first else path, **options))
        return first[-1]

    engine = SmallEngine(holder, seed, GROUPS[groups], wrap=wrap)
    try:
        engine.run(LENGTH)
    except Exception:
        if holder is kvproof.fast:
            raise
    finally:
        first[0].close()
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a run in which all was right, with states."""
    return recorded(tmp_path_factory.mktemp("logs") / "engine.log", states_every=5)


def test_a_log_begins_with_what_was_made_and_ends(log: Path) -> None:
    lines = log.read_text().splitlines()
    assert json.loads(lines[0]) == {"kvproof": "log", "version": 1, "tokens": "mapped", "names": "shown"}
    assert [json.loads(line)[0][0] for line in lines[1:5]] == ["make"] * 4
    assert json.loads(lines[-1])[0][0] == "end"


# -- Round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("states_every", [None, 1, 0])
def test_what_the_fast_backend_did_is_right(tmp_path: Path, groups: str, states_every: int | None) -> None:
    path = recorded(tmp_path / "a.log", seed=3, groups=groups, states_every=states_every)
    result = replay_log(path)
    assert (result.wrong, result.cut) == (None, None)
    assert result.operations > LENGTH
    assert (result.states > 0) == (states_every != 0)


@pytest.mark.parametrize("options", [{}, {"redact": True}, {"show_tokens": True}], ids=["mapped", "redacted", "shown"])
def test_a_redacted_log_replays_alike_and_holds_no_secret(tmp_path: Path, options: dict[str, Any]) -> None:
    """SEC-2: no salt in any log, no token id unless asked for; and what is in the log is another key's each time."""
    runs = [recorded(tmp_path / f"{place}.log", seed=1, **options) for place in range(2)]
    texts = [path.read_text() for path in runs]
    results = [replay_log(path) for path in runs]
    assert results[0].wrong is None
    assert results[0].operations == results[1].operations
    for text in texts:
        assert SALT not in text
        assert CacheSalt(SALT).fingerprint.hex() not in text
        assert ('"r1"' in text) == ("redact" not in options)
    assert "CacheSalt" in texts[0]
    assert (texts[0] == texts[1]) is False  # fingerprints are mapped by the log's own key


@pytest.mark.parametrize(
    ("name", "groups"),
    [("deferred_free_reversed", "full"), ("hash_kept_on_eviction", "full"), ("salt_ignored", "full")],
)
def test_a_seeded_bug_is_found_at_its_first_wrong_step(tmp_path: Path, name: str, groups: str) -> None:
    bug = catalogue.SEEDED_BUGS[name]
    for seed in range(12):
        path = recorded(tmp_path / "a.log", getattr(catalogue, name), seed, groups, states_every=1)
        wrong = replay_log(path).wrong
        if wrong is not None:
            break
    assert wrong is not None
    assert wrong.clause in bug.clauses | {
        "MAN-3"
    }  # what stays published shows behind the call that should have ended it
    assert wrong.before
    assert wrong.after
    assert wrong.call
    assert replay_log(path, f"kvproof.conformance.catalogue:{name}").wrong is None  # it did what it does


def test_what_is_passed_over_is_not_named(tmp_path: Path) -> None:
    class Usage(kvproof.fast.CacheManager):
        @property
        def usage(self) -> float:
            return super().usage + 0.1

    with record(Usage(4, [full(2)], 8), tmp_path / "a.log") as manager:
        assert manager.usage == pytest.approx(0.1)
        manager.free(Request("a", [1]))
    wrong = replay_log(tmp_path / "a.log").wrong
    assert wrong is not None
    assert (wrong.number, wrong.call, wrong.clause) == (1, "manager.usage", "POOL-10")
    assert replay_log(tmp_path / "a.log", ignore=frozenset({"POOL-10"})).wrong is None


def test_a_recorded_object_is_what_it_records(tmp_path: Path) -> None:
    manager = record(kvproof.fast.CacheManager(4, [full(2)], 8), tmp_path / "a.log")
    tables = record(kvproof.fast.MultiGroupPageTable(2, 8, 8, [2]), manager)
    assert [isinstance(manager, kind) for kind in (kvproof.fast.CacheManager, kvproof.fast.PagePool)] == [True, False]
    assert manager.max_model_len == 8
    assert len(tables) == 1
    assert tables[0].max_num_reqs == 2
    with pytest.raises(IndexError):
        tables[1]
    request = Request("a", [1, 2, 3])
    pages = manager.allocate_slots(request, num_new_tokens=3)
    assert pages.get_page_ids() == ([1, 2],)
    tables.append_row([[1]], 0)
    tables[0].append_row(iter([2]), 0)
    batch = manager.allocate_slots_batch(iter([manager.slot_of("a")]), (3,), 1, tables=tables, rows=[0])
    assert batch.num_granted == 1
    manager.close()
    manager.free(request)  # goes on, unrecorded
    result = replay_log(tmp_path / "a.log")
    assert (result.operations, result.wrong) == (5, None)


class _Elsewhere(kvproof.spec.CacheManager):
    """A manager as another package has it: its page lists are lists, and it takes arguments of its own."""

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: Any = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
        shard_hint: int | None = None,
    ) -> Any:
        given = num_new_computed_tokens, new_computed_pages, num_lookahead_tokens, delay_cache_pages
        pages = super().allocate_slots(request, num_new_tokens, *given)
        return None if pages is None else _Pages(tuple(map(list, pages.pages)))

    def create_empty_page_list(self) -> Any:
        return _Pages(tuple([] for _ in self.kv_cache_groups))


class _Pages:
    def __init__(self, pages: tuple[list[Any], ...]) -> None:
        self.pages = pages

    def get_page_ids(self) -> tuple[list[int], ...]:
        return tuple([page.page_id for page in group] for group in self.pages)


def test_a_manager_of_another_package_is_recorded_in_columns(tmp_path: Path) -> None:
    """However it is called; what it returned is told as it was then; what it refuses and can't give, too."""
    request = Request("a", [1, 2, 3])
    with record(_Elsewhere(3, [full(2)], 16), tmp_path / "a.log") as manager:
        manager.get_computed_pages(request)
        pages = manager.allocate_slots(request, 3, num_lookahead_tokens=0, shard_hint=None)
        pages.pages[0].clear()
        for token in range(2):
            request.num_computed_tokens = request.num_tokens
            request.append(token)
            again = manager.allocate_slots(request=request, num_new_tokens=1, shard_hint=1)
            manager.usage  # noqa: B018
        assert again is None
        with pytest.raises(ValueError, match="num_new_tokens"):
            manager.allocate_slots(request, 0, shard_hint=1)
        manager.allocate_slots(request, np.int64(1))
        manager.free(request)
        request.num_computed_tokens = 0
        manager.allocate_slots(request, 1)
    entries = [json.loads(line)[0] for line in (tmp_path / "a.log").read_text().splitlines()[1:]]
    slots = [entry for entry in entries if entry[0] == "slots"]
    assert [entry[-1] for entry in slots] == [[[0, [[1, 2]]]], [[0, None]]]
    result = replay_log(tmp_path / "a.log")
    assert (result.wrong, result.cut, result.operations) == (None, None, 10)


def test_requests_that_are_recycled_and_rewritten_are_told_anew(tmp_path: Path) -> None:
    request = Request("a", [1, 2, 3, 4, 5])
    with record(kvproof.fast.CacheManager(9, [full(2)], 16), tmp_path / "a.log") as manager:
        manager.allocate_slots(request, 5)
        manager.free(request)
        request.num_tokens = 0
        for token in (1, 2, 9, 4, 5):
            request.append(token)
        pages, found = manager.get_computed_pages(request)
        assert found == 2
        manager.allocate_slots(request, 3, found, pages)
    assert replay_log(tmp_path / "a.log").wrong is None


def test_keys_of_pages_are_told_by_where_they_come_from(tmp_path: Path) -> None:
    request = Request("a", [1, 2, 3, 4])
    with record(kvproof.fast.PagePool(5, True), tmp_path / "a.log") as pool:
        pages = pool.get_new_pages(2)
        pool.cache_full_pages(request, pages, [], 0, 2, 2, kv_cache_group_id=0)
        assert pool.get_cached_page(pages[1].page_hash.page_hash, [0]) is not None
        assert pool.get_cached_page(kvproof.fast.PageHash(b"none", (), None), [0]) is None
        with pytest.raises(TypeError):
            pool.free_pages([object()])
    result = replay_log(tmp_path / "a.log")
    assert (result.operations, result.wrong) == (5, None)


# -- Refusals -------------------------------------------------------------------------------------


def test_what_can_not_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="CacheManager"):
        record(object(), tmp_path / "a.log")
    used = kvproof.fast.CacheManager(4, [full(2)], 8)
    used.allocate_slots(Request("a", [1, 2]), 2)
    with pytest.raises(LogError, match="used before"):
        record(used, tmp_path / "a.log")
    with pytest.raises(LogError, match="shows no page_pool"):
        record(radix.CacheManager(4, [full(2)], 8), tmp_path / "a.log")
    with pytest.raises(LogError, match="No such file"):
        record(kvproof.fast.PagePool(3, True), tmp_path / "nowhere" / "a.log")
    with pytest.raises(LogError, match="no argument"):
        record(kvproof.fast.PagePool(3, True), tmp_path / "a.log", options={"os": 1})
    open_log = record(kvproof.fast.PagePool(3, True), tmp_path / "a.log")
    with pytest.raises(LogError, match="another recording"):
        record(kvproof.fast.PagePool(3, True), tmp_path / "a.log")
    open_log.close()


def test_a_full_disk_ends_the_log_and_not_the_engine(tmp_path: Path) -> None:
    pool = record(kvproof.fast.PagePool(3, True), tmp_path / "a.log")
    writer = pool.__dict__["_kvproof_writer"]
    with open("/dev/full", "w") as disk:
        writer._file.close()
        writer._file = disk
        pool.get_num_free_pages()
        with pytest.warns(RuntimeWarning, match="the log ends here"):
            pool.flush()
        assert pool.get_num_free_pages() == 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pool.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no log"),
        ('{"kvproof": "trace", "version": 1}\n', "no log"),
        ('{"kvproof": "log"}\n', "without a version"),
        ('{"kvproof": "log", "version": 2}\n', "a log, version 2: this version reads version 1 only"),
        ('{"kvproof": "log", "version": 1}\n{}\n', "line 2"),
        ('{"kvproof": "log", "version": 1}\n[["make",0,"os.system",{}]]\n', "no known class"),
        (
            '{"kvproof": "log", "version": 1}\n[["make",0,"PagePool",{"num_pages":1e9,"enable_caching":true}]]\n',
            "num_p",
        ),
        ('{"kvproof": "log", "version": 1}\n[["make",0,"PagePool",{"num_pages":1,"enable_caching":true}]]\n', "POOL-1"),
        ('{"kvproof": "log", "version": 1}\n[["call",0,"free",{},null]]\n', "an object's number"),
        ('{"kvproof": "log", "version": 1}\n' + "[" * 100_000 + "\n", "nested too deeply"),
        ('{"kvproof": "log", "version": 1}\n[["keys",0,' + "9" * 5000 + "]]\n", "digits"),
        ('{"kvproof": "log", "version": 1}\n[["end",NaN]]\n', "NaN"),
        (f"{HEAD}[0,1],[],null]]\n", "a text in base 64"),
        (f'{HEAD}"AA*A",[],null]]\n', "a text in base 64"),
        (f'{HEAD}{{"i32":"AAAA"}},[],null]]\n', "4 bytes each, and 3 bytes"),
        (f'{HEAD}"AAA=",[],null]]\n', "3 bytes each, and 2 bytes"),
        (f'{HEAD}"",[],null],["tokens","AAAA",[0],[1],"AAAA"]]\n', "4 bytes each, and 3 bytes"),
        (f'{HEAD}"",[],null],["tokens",[0],[0],[2],"AAAA"]]\n', "count"),
    ],
)
def test_bad_logs_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    """SEC-3."""
    path = tmp_path / "bad.log"
    path.write_text(text)
    with pytest.raises(LogError, match=r"bad\.log") as refused:
        replay_log(path)
    assert message in str(refused.value)
    assert str(refused.value).isprintable()
    assert main(["shrink", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_log_that_was_cut_replays_up_to_there(log: Path, tmp_path: Path) -> None:
    whole = log.read_bytes()
    cut = tmp_path / "cut.log"
    operations = set()
    for share in (0.4, 0.7, 0.95):
        cut.write_bytes(whole[: int(len(whole) * share)])
        result = replay_log(cut)
        assert result.wrong is None
        assert result.cut is not None
        operations.add(result.operations)
    assert len(operations) == 3
    cut.write_bytes(whole[: whole.rindex(b'[["end"')])
    assert "not closed" in str(replay_log(cut).cut)
    assert replay_log(log).cut is None


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_damaged_log_gives_a_result_or_one_line(
    log: Path, tmp_path_factory: pytest.TempPathFactory, draw: Any
) -> None:
    """SEC-3: whatever was done to it."""
    text = log.read_text()
    damaged = MUTATIONS[draw.randrange(len(MUTATIONS))](text, draw)
    path = tmp_path_factory.getbasetemp() / "damaged.log"
    path.write_text(damaged)
    for act in (replay_log, partial(replay_log, level="safe"), partial(read_calls, backend=FAST, level="safe")):
        outcome = attempt(partial(act, path))
        assert outcome.error is None or type(outcome.error) is LogError, repr(outcome.error)
        assert outcome.error is None or str(outcome).isprintable()


def _other_number(text: str, draw: random.Random) -> str:
    places = [place for place, character in enumerate(text) if character.isdigit()]
    place = draw.choice(places)
    return text[:place] + draw.choice(["-1", "99999999", "null", "true", "[]", "{}", '"x"', "1e5"]) + text[place + 1 :]


def _other_word(text: str, draw: random.Random) -> str:
    words = ["request", "slots", "call", "pages", "known", "r", "k", "type", "free", "of", "num_pages", "hits"]
    return text.replace(f'"{draw.choice(words)}"', f'"{draw.choice(words)}"', draw.randint(1, 3))


def _no_entry(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    number = draw.randrange(1, len(lines))
    entries = json.loads(lines[number])
    del entries[draw.randrange(len(entries))]
    return "\n".join([*lines[:number], json.dumps(entries), *lines[number + 1 :]]) + "\n"


def _no_character(text: str, draw: random.Random) -> str:
    place = draw.randrange(len(text))
    return text[:place] + text[place + draw.randint(1, 9) :]


MUTATIONS: list[Callable[[str, random.Random], str]] = [_other_number, _other_word, _no_entry, _no_character]


# -- The command ----------------------------------------------------------------------------------


def test_the_command_tells_a_log_from_a_trace(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(log), "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert "no difference" in out
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["kvproof"], written["deviates"]) == ("log replay", False)
    assert main(["replay", str(log), "--lockstep"]) == 2
    assert main(["replay", str(log), "--ignore", "NO-1"]) == 2
    assert main(["replay", str(log), "--backend", "no.such"]) == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_the_command_names_the_wrong_step_and_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-2, SEC-4: ids are hostile text, tokens are shown when asked for only."""

    class Slow(kvproof.fast.CacheManager):
        def slot_of(self, request_id: str) -> int:
            return super().slot_of(request_id) + 1

    with record(Slow(4, [full(2)], 8), tmp_path / "a.log", show_tokens=True) as manager:
        manager.allocate_slots(Request("\x1b[31m<b>", [4321, 4322]), 2)
        manager.slot_of("\x1b[31m<b>")
    assert main(["replay", str(tmp_path / "a.log")]) == 1
    out = capsys.readouterr().out
    assert "operation 2 deviates from MAN-11" in out
    assert "\x1b" not in out
    assert "4321" not in out
    main(["replay", str(tmp_path / "a.log"), "--show-tokens", "--redact"])
    out = capsys.readouterr().out
    assert "[4321, 4322]" in out
    assert "<b>" not in out


# -- Frames ---------------------------------------------------------------------------------------


def test_frames_show_who_holds_what(tmp_path: Path) -> None:
    pictures = list(frames(recorded(tmp_path / "a.log", seed=7)))
    assert [picture.number for picture in pictures] == list(range(1, len(pictures) + 1))
    for picture in pictures:
        assert not set(picture.owners) & set(picture.free)
        assert set(picture.owners) | set(picture.free) == set(range(1, 12))
        assert picture.fault is None
    assert any(len(names) > 1 for picture in pictures for names in picture.owners.values())
    assert any(picture.evicted for picture in pictures)
    assert any(any(picture.rows) for picture in pictures)
    assert pictures[-1].step > 3
    ends = list(frames(tmp_path / "a.log", steps_only=True))
    assert {end.number for end in ends} < {picture.number for picture in pictures}


def test_a_log_whose_operations_end_no_step_has_no_steps_to_draw(tmp_path: Path) -> None:
    with record(kvproof.fast.PagePool(4, True), tmp_path / "a.log") as pool:
        pool.get_new_pages(1)
    assert len(list(frames(tmp_path / "a.log"))) == 1
    with pytest.raises(LogError, match="ends a step"):
        list(frames(tmp_path / "a.log", steps_only=True))


def test_the_last_frame_has_the_fault(tmp_path: Path) -> None:
    bug = catalogue.deferred_free_reversed
    path = recorded(tmp_path / "a.log", bug, seed=0, states_every=1)
    wrong = replay_log(path).wrong
    *before, last = frames(path)
    assert wrong is not None
    assert last.number == wrong.number
    assert last.fault is not None
    assert wrong.clause in last.fault
    assert all(picture.fault is None for picture in before)
