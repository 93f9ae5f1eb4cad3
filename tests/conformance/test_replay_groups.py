"""Replays of several cache groups, with and without a draft model: what they count, and what lockstep catches."""

import json
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvproof import fast, spec
from kvproof.conformance.cli import main
from kvproof.conformance.replay.engine import LOOKAHEAD, DeviationError, Engine, num_slots, sizes_for
from kvproof.conformance.replay.groups import GroupsError, named, read_groups
from kvproof.conformance.replay.report import Report
from kvproof.conformance.replay.serving import num_accepted
from kvproof.conformance.replay.traces import TraceRequest, synthetic_trace
from kvproof.spec.declarations import MambaSpec, PageCopy, PartCopy, SlidingWindowSpec

from .replays import Backends, replayed, request

# -- The words ------------------------------------------------------------------------------------


def test_groups_are_read_and_named() -> None:
    groups = read_groups("full:16,window:16:4096, chunk:8:64 ,mla,mamba,mamba:64:align,window::7,mamba:16:none", 32)
    assert list(map(named, groups)) == [
        "full:16",
        "window:16:4096",
        "chunk:8:64",
        "mla:32",
        "mamba:32:none",
        "mamba:64:align",
        "window:32:7",
        "mamba:16:none",
    ]
    assert read_groups(",".join(map(named, groups)), 1) == groups
    assert spec.CacheManager(4, groups, 64).num_kv_cache_groups == len(groups)  # the specification takes them
    window, states = groups[1].kv_cache_spec, groups[5].kv_cache_spec
    assert isinstance(window, SlidingWindowSpec)
    assert isinstance(states, MambaSpec)
    assert (window.sliding_window, states.mamba_cache_mode) == (4096, "align")


BAD_GROUPS = {
    "": "'': the kind must be one of full, window, chunk, mla, mamba",
    "full,": "'': the kind must be",
    "Full:16": "'Full:16': the kind must be",
    "full:0": "'full:0': the page size must be a number in [1, 2147483647], not '0'",
    "full:1_6": "not '1_6'",
    "full:-1": "not '-1'",
    "full:١٦": "not '١٦'",
    f"full:{'9' * 5000}": "the page size must be a number",
    "full:16:4096": "this kind has a page size and nothing behind it, not '4096'",
    "mla:16:": "nothing behind it, not ''",
    "window:16": "'window:16': the window is missing, as in window:16:4096",
    "window:16:none": "the window must be a number in [1, 2147483647], not 'none'",
    "chunk": "the chunk is missing, as in chunk:16:8192",
    "mamba:16:all": "the mode must be none or align, not 'all'",
    "window:16:4096:1": "there is more than kind:page_size:argument",
}


@pytest.mark.parametrize(("words", "reason"), BAD_GROUPS.items(), ids=range(len(BAD_GROUPS)))
def test_bad_groups_are_refused_in_a_line(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GroupsError, match=r"^--groups, '"):
        read_groups(words, 16)
    assert main(["replay", "--synthetic", "5", "--groups", words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kvproof replay: --groups, '")
    assert printed.err.count("\n") == 1
    assert reason in printed.err


@pytest.mark.parametrize("words", [["--prefill-chunk", "0"], ["--groups", "full:1024", "--num-pages", "9999999"]])
def test_sizes_that_make_no_sense_are_refused_in_a_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--synthetic", "5", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- Serving --------------------------------------------------------------------------------------

SERVED = {
    "full": ("full:16", None, False),
    "full with drafts": ("full:16", None, True),
    "window, in chunks": ("window:16:100", 512, False),
    "chunked local with drafts": ("chunk:16:512", None, True),
    "hybrid": ("full:16,window:16:256", 300, False),
    "hybrid with drafts": ("mla:16,window:8:64", 512, True),
    "states in place": ("full:16,window:16:4096,mamba", None, True),
    "states kept": ("full:16,mamba:16:align", 512, False),
    "every kind": ("window:8:40,full:32,mamba:32:align,chunk:16:1024,mla", 512, True),
    "states alone": ("mamba:16:align", 100, False),
}


@pytest.mark.parametrize(("groups", "chunk", "use_eagle"), SERVED.values(), ids=SERVED)
def test_a_short_pool_serves_all(groups: str, chunk: int | None, use_eagle: bool) -> None:
    """By the fast backend, and so by the specification, which lockstep holds beside it at every call."""
    trace = synthetic_trace(12, seed=5)
    pages = 130 * len(groups.split(",")) + 100
    report = replayed(
        trace,
        num_pages=pages,
        groups=groups,
        prefill_chunk=chunk,
        use_eagle=use_eagle,
        backend=fast,
        lockstep=True,
    )
    longest = sizes_for(trace, read_groups(groups, 16), pages, 8, chunk, use_eagle=use_eagle).max_model_len
    fitting = [one for one in trace if num_slots(one) <= longest]
    assert report.served == len(fitting) >= 8
    assert report.output_tokens == sum(one.output_length for one in fitting)
    assert (report.hit_rate > 0.05) == ("mamba:16:none" not in groups and groups != "full:16,window:16:4096,mamba")
    assert (report.page_copies > 0) == ("align" in groups)
    assert (report.accepted_drafts > 0) == (use_eagle and "mamba" not in groups)
    assert report.published_pages is not None


def test_a_step_ends_at_the_last_page_of_a_prompt() -> None:
    """RET-1, MAN-13: the state there is what the same prompt finds."""
    trace = [request(1000, 1), request(1000, 1)]
    whole = replayed(trace, num_pages=200, groups="full,mamba:16:align", live=1, lockstep=True)
    assert (whole.hit_tokens, whole.page_copies, whole.steps) == (992, 2, 3)
    assert whole.published_pages == 62 + 1, "the second publishes nothing: its last page has 8 tokens"
    chunked = replayed(trace, num_pages=200, groups="full,mamba:16:align", live=1, prefill_chunk=512, lockstep=True)
    assert (chunked.hit_tokens, chunked.page_copies, chunked.steps) == (992, 3, 4)


def test_a_step_ends_where_a_prompt_parts_from_an_earlier_one() -> None:
    """RET-2: the second prompt finds the junction, the third hits there."""
    trace = [TraceRequest(0, 1000, 1, (0, own)) for own in (1, 2, 3)]
    report = replayed(trace, num_pages=300, groups="full,mamba:16:align", live=1, lockstep=True)
    assert (report.hit_tokens, report.steps) == (512, 2 + 3 + 2)


def test_hits_are_told_by_their_reasons() -> None:
    """The next turn of a conversation, a beginning that others have too, and a junction where states are kept."""
    first, turn = TraceRequest(0, 1024, 1, (0, 1)), TraceRequest(0, 1500, 1, (0, 1, 2))
    others = [TraceRequest(0, 1600, 1, (0, own, own + 1, own + 2)) for own in (10, 20, 30)]
    report = replayed([first, turn, others[0]], num_pages=300, live=1, lockstep=True)
    assert report.hit_tokens_by_reason == {"own_turn": 1024, "junction": 0, "other_request": 512}
    states = replayed(others, num_pages=300, groups="full,mamba:16:align", live=1, lockstep=True)
    assert states.hit_tokens_by_reason == {"own_turn": 0, "junction": 512, "other_request": 0}


@pytest.mark.parametrize("groups", ["full:96", "full:96,window:48:200", "full:32,mla:96,chunk:48:700"])
def test_hits_end_amid_pages(groups: str) -> None:
    """MAN-17: prompts that part after 512 tokens hit up to there, in units; the copies are the specification's."""
    trace = [TraceRequest(0, 800, 20, (0, own)) for own in (1, 2, 3, 1)]
    for unit, expected in ((16, [512, 512]), (None, [480, 480])):
        report = replayed(trace, num_pages=60, groups=groups, live=1, match_unit=unit, lockstep=True)
        assert report.preemptions == 0
        assert (report.page_copies > 0) == (unit is not None)
        if groups == "full:96":
            assert report.hit_tokens == sum(expected) + (784 if unit else 768)


def test_what_no_hit_can_need_is_counted() -> None:
    """RET-3: pages before the window of a prompt's end; EVICT-1: what comes again soon after its eviction."""
    trace = [request(1024, 1, 10 * number) for number in (0, 1, 2, 0, 1, 2)]
    options: dict[str, Any] = {"num_pages": 150, "groups": "full,window:16:64", "live": 1, "prefill_chunk": 256}
    lru = replayed(trace, **options, lockstep=True)
    assert lru.regrets == 0
    assert lru.unreachable_pages == 6 * 59, "all but those that a hit of 1,008 or 1,024 tokens needs"
    reuse = replayed(trace, **options, engine=partial(Engine, eviction="reuse"), lockstep=True)
    assert reuse.regrets
    assert reuse.unreachable_pages == lru.unreachable_pages


def test_a_prompt_is_taken_in_chunks() -> None:
    report = replayed([request(100, 1), request(100, 3)], num_pages=50, live=1, prefill_chunk=40, lockstep=True)
    # 40, 80, 100 of the first; 96 of the second are found and the step goes to its end
    assert (report.steps, report.hit_tokens, report.output_tokens) == (3 + 1 + 2, 96, 4)


def test_pages_of_a_window_come_back_while_the_request_lives() -> None:
    groups, trace = "window:16:16", [request(112, 40), request(112, 40, 1)]
    report = replayed(trace, num_pages=1 + 10, groups=groups, lockstep=True)
    # the second prompt is admitted when the first, at its first decode, gives back 6 of its 7 pages
    assert (report.served, report.preemptions, report.steps) == (2, 0, 1 + 40)
    assert report.peak_usage == (2 + 7) / 10
    # in chunks a request holds two pages of its window and one that it fills
    chunked = replayed(trace, num_pages=1 + 3, groups=groups, prefill_chunk=16, lockstep=True)
    assert (chunked.served, chunked.refused) == (2, 0)
    assert replayed(trace, num_pages=1 + 9, groups=groups, lockstep=True).refused == 2


@pytest.mark.parametrize(
    ("groups", "chunk", "least"),
    [("full", None, 7), ("full,mla:32", None, 7 + 4), ("full,mamba", None, 7 + 1), ("full,mamba:16:align", 50, 7 + 2)],
)
def test_requests_are_refused_by_the_groups_needs(groups: str, chunk: int | None, least: int) -> None:
    trace = [request(100, 13)]
    for num_pages, refused in ((least, 1), (least + 1, 0)):
        report = replayed(trace, num_pages=num_pages, groups=groups, prefill_chunk=chunk, live=1, lockstep=True)
        assert report.refused == refused


# -- Drafts ---------------------------------------------------------------------------------------


def test_accepted_drafts_save_steps() -> None:
    assert {num_accepted("request 0", position) for position in range(100)} == set(range(LOOKAHEAD + 1))
    trace = [request(33, 200)]
    plain = replayed(trace, num_pages=50, lockstep=True)
    drafted = replayed(trace, num_pages=50, use_eagle=True, lockstep=True)
    assert (plain.steps, plain.accepted_drafts, plain.output_tokens) == (200, 0, 200)
    assert drafted.output_tokens == 200
    assert drafted.steps == 200 - drafted.accepted_drafts < 120
    states = replayed(trace, num_pages=50, groups="full,mamba", use_eagle=True, lockstep=True)
    assert (states.steps, states.accepted_drafts) == (200, 0)


def test_a_draft_model_needs_the_page_after_the_hit() -> None:
    trace = [request(64, 1), request(64, 1)]
    assert replayed(trace, num_pages=50, live=1).hit_tokens == 48
    assert replayed(trace, num_pages=50, live=1, use_eagle=True, lockstep=True).hit_tokens == 48
    trace = [request(65, 1), request(65, 1)]
    assert replayed(trace, num_pages=50, live=1).hit_tokens == 64
    assert replayed(trace, num_pages=50, live=1, use_eagle=True, lockstep=True).hit_tokens == 48


# -- Backends that deviate, and such as count less --------------------------------------------------


class SwapsCopies(spec.CacheManager):
    """Copies a new state onto the old one."""

    def take_page_copies(self) -> list[PageCopy | PartCopy]:
        return [PageCopy(copy.group_id, copy.destination, copy.source) for copy in super().take_page_copies()]


class OneTableForAll(spec.MultiGroupPageTable):
    """Enters the first group's pages in every group's table."""

    def append_rows_batch(self, page_ids: Any, req_indices: Any) -> None:
        super().append_rows_batch([[row[0] for _ in row] for row in page_ids], req_indices)


class KeepsWindows(spec.CacheManager):
    """Gives back nothing before a request ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.coordinator.remove_skipped_pages = lambda *_: None  # type: ignore[method-assign]


class WithoutCounters:
    """Has a manager's calls, and no counters."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._manager = spec.CacheManager(*args, **options)
        self.page_pool = self._manager.page_pool

    def __getattr__(self, name: str) -> Any:
        if name == "counters":
            raise AttributeError(name)
        return getattr(self._manager, name)


class MiscountsEvictions(spec.CacheManager):
    """Counts no evictions."""

    @property
    def counters(self) -> Any:
        return types.SimpleNamespace(evictions=0)


def deviation(backend: Backends, groups: str, chunk: int | None = 256) -> DeviationError:
    with pytest.raises(DeviationError) as caught:
        replayed(
            synthetic_trace(8),
            num_pages=500,
            groups=groups,
            prefill_chunk=chunk,
            backend=backend,
            lockstep=True,
        )
    return caught.value


def test_wrong_copies_are_caught() -> None:
    verdict = deviation(Backends(SwapsCopies), "full,mamba:16:align")
    assert (verdict.call, verdict.clause) == ("manager.take_page_copies()", "MAN-13")
    assert verdict.expected != verdict.observed


def test_one_table_for_all_groups_is_caught() -> None:
    verdict = deviation(Backends(tables=OneTableForAll), "full,mla:32")
    assert (verdict.call.split(".")[0], verdict.clause) == ("tables", "TAB-1")
    assert verdict.expected.startswith("pages in a row = ")


def test_windows_that_are_kept_are_caught() -> None:
    verdict = deviation(Backends(KeepsWindows), "full,window:16:64")
    assert verdict.call.startswith("manager.allocate_slots(")  # pages that no hit needs are the next to be taken
    assert (verdict.request_id, verdict.clause) == ("request 0", "MAN-2")


def test_evictions_are_compared() -> None:
    verdict = deviation(Backends(MiscountsEvictions), "full,window:16:64")
    assert (verdict.call, verdict.clause) == ("manager.counters", "MAN-12")


def test_a_manager_without_counters_is_counted_where_that_is_plain() -> None:
    trace = synthetic_trace(12)

    def report(groups: str, backend: type = WithoutCounters, *, use_eagle: bool = False) -> Report:
        return replayed(trace, num_pages=330, groups=groups, backend=Backends(backend), use_eagle=use_eagle)

    for groups in ("full", "mla,full:32"):
        counted, by_requests = report(groups, spec.CacheManager), report(groups)
        assert counted.evictions
        assert (by_requests.published_pages, by_requests.evictions) == (counted.published_pages, counted.evictions)
    for by_requests in (report("full,window:16:64"), report("full", use_eagle=True)):
        assert (by_requests.published_pages, by_requests.evictions) == (None, None)


# -- The command ----------------------------------------------------------------------------------


def test_the_report_names_the_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    words = ["replay", "--synthetic", "6", "--backend", "kvproof.spec", "--num-pages", "1500", "--json", str(path)]
    assert main([*words, "--groups", "full,window:8:256,mamba:16:align", "--eagle", "--lockstep"]) == 0
    printed = capsys.readouterr().out
    assert "kvproof.spec: 1,500 pages, at most" in printed
    for shown in ("full:16", "window:8:256", "mamba:16:align", "drafts", "pages copied", "no difference"):
        assert shown in printed
    report = json.loads(path.read_text())
    assert report["groups"] == ["full:16", "window:8:256", "mamba:16:align"]
    assert (report["eagle"], report["page_size"], report["prefill_chunk"]) == (True, None, None)
    assert (report["accepted_drafts"], report["page_copies"] > 0) == (0, True)
    assert main([*words, "--page-size", "32"]) == 0
    report = json.loads(path.read_text())
    assert (report["groups"], report["page_size"], report["eagle"]) == (["full:32"], 32, False)
    assert report["prefill_chunk"] is None
