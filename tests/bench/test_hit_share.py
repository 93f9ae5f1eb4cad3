"""The hit-share bench: its workloads are served, no share is above its bound, the command writes what it prints."""

import json
from pathlib import Path

import pytest

from kvproof.conformance.replay.traces import TraceRequest, synthetic_trace

from .hit_serving import SERVERS, serve
from .hit_share import main, measure
from .hit_workloads import agentic_trace, made_up, of_trace

WORKLOADS = {
    workload.name: workload
    for workload in [*made_up(60), *of_trace("chats", "made-up chats", synthetic_trace(60), (60, 400))]
}


@pytest.mark.parametrize(
    "name", ["agents-full", "agents-states", "chats-full", "chats-windows", "seats-3", "families", "odd-pages"]
)
def test_no_share_is_above_its_bound(name: str) -> None:
    workload = WORKLOADS[name]
    for num_pages in workload.num_pages:
        result = measure(workload, num_pages, ["kvproof lru"])
        assert 0 <= result["shares"]["kvproof lru"] <= result["limits"]["optimum"] <= result["limits"]["unbounded"] < 1
        assert result["requests"] == len(workload.prompts) - workload.counted_from


def test_two_seats_are_hit() -> None:
    result = measure(WORKLOADS["seats-2"], 12_000, ["kvproof lru"])
    assert result["shares"]["kvproof lru"] > 0.99
    assert result["notes"]["kvproof lru"]["requests with a hit"] == result["requests"] == 4


def test_seats_of_which_not_all_fit_are_kept_whole() -> None:
    """EVICT-1: seven seats want 107 pages more than there are; of a seat whose windows are gone nothing is hit."""
    seats = WORKLOADS["seats-7"]
    server = SERVERS["kvproof adaptive"](seats, 12_000, max(len(prompt.make()) for prompt in seats.prompts))
    hits = serve(seats, server, lambda _: None).hits[seats.counted_from :]
    assert sum(hit > 21_000 for hit in hits) >= 10, "of fourteen"


def test_a_prompt_again_is_hit_amid_pages() -> None:
    """MAN-17: all but the last two tokens."""
    assert measure(WORKLOADS["odd-pages"], 4_000, ["kvproof lru"])["shares"]["kvproof lru"] == 2_046 / 2_048


def test_streams_are_on_shards() -> None:
    result = measure(WORKLOADS["streams"], 4_000, ["kvproof lru"])
    assert 4 <= result["notes"]["kvproof lru"]["requests of the busiest shard"] <= 8
    assert result["notes"]["kvproof lru"]["requests with a hit"] >= 12, "all but the first of a prompt on a shard"


def test_a_request_that_gives_way_counts_once() -> None:
    """Four requests that grow from 2 pages to 5 in a pool of 9: whoever comes back hits what it computed before."""
    trace = [TraceRequest(0, 600, 1_900, (2 * number, 2 * number + 1)) for number in range(4)]
    result = measure(of_trace("growing", "prompts that grow", trace, (10,))[0], 10, ["kvproof lru"])
    assert result["notes"]["kvproof lru"]["preemptions"] > 0
    assert result["shares"]["kvproof lru"] == 0


def test_agents_fork_and_come_back() -> None:
    trace = agentic_trace(400, seed=1)
    assert trace == agentic_trace(400, seed=1) != agentic_trace(400, seed=2)
    assert len(trace) == 400
    contexts = [request.hash_ids for request in trace]
    followers = [
        sum(later[: len(context)] == context for later in contexts[place + 1 :])
        for place, context in enumerate(contexts)
    ]
    assert max(followers) > 2, "some contexts are forked"
    assert followers.count(0) > 20, "some are abandoned"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hits.json"
    assert main(["--workloads", "families,odd", "--of", "kvproof lru", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    results = json.loads(file.read_text())["results"]
    assert [result["workload"] for result in results] == ["families", "odd-pages"]
    for result in results:
        assert f"| {result['shares']['kvproof lru']:.4f} | {result['limits']['optimum']:.4f} |" in printed.out
    assert "families, 2,000 pages" in printed.err


def test_what_was_measured_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        {**measure(workload, pages, ["kvproof adaptive"], 1_024), "num_pages": pages}
        for workload in (WORKLOADS["chats-full"], WORKLOADS["seats-2"])
        for pages in (60, 400, 12_000)[2 * workload.name.startswith("seats") :]
    ]
    file, drawing = tmp_path / "hits.json", tmp_path / "hits.svg"
    file.write_text(json.dumps({"results": results}))
    assert main(["--from", str(file), "--svg", str(drawing)]) == 0
    assert "| chats-full | 60 |" in capsys.readouterr().out
    shown = drawing.read_text()
    assert shown.startswith("<svg")
    assert ">chats-full<" in shown
    assert ">kvproof adaptive<" in shown
    assert "seats" not in shown, "one number of seats is no curve"
