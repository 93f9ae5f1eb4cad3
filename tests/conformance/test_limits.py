"""The bounds on hit shares: the optimum is the best of all choices, LRU is what the specification does."""

import json
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvproof.fast
from kvproof.conformance.cli import main
from kvproof.conformance.replay.limits import Chain, limits_of, lru_hits, optimum_hits
from kvproof.conformance.replay.traces import TraceRequest, synthetic_trace
from kvproof.spec.declarations.eviction import POLICIES

from .replays import replayed, request


@st.composite
def _chains(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Prompts as paths from the root of a small tree, so that a page's number stands for one prefix."""
    parents = draw(
        st.lists(st.integers(-1, 5), min_size=1, max_size=7).map(lambda p: [min(x, i - 1) for i, x in enumerate(p)])
    )

    def path(node: int) -> tuple[int, ...]:
        return () if node < 0 else (*path(parents[node]), node)

    return [path(node) for node in draw(st.lists(st.integers(0, len(parents) - 1), min_size=1, max_size=8))]


def _best(chains: list[tuple[int, ...]], num_pages: int) -> int:
    """The most hits that any choice of evictions reaches: all are tried."""

    @cache
    def best(place: int, resident: frozenset[int]) -> int:
        if place == len(chains):
            return 0
        hits = next((n for n, page in enumerate(chains[place]) if page not in resident), len(chains[place]))
        union = resident | set(chains[place])
        keeps = combinations(sorted(union), min(num_pages, len(union)))
        return hits + max(best(place + 1, frozenset(keep)) for keep in keeps)

    return best(0, frozenset())


@given(_chains(), st.integers(1, 4))
def test_the_optimum_is_the_best_of_all_choices(chains: list[tuple[int, ...]], num_pages: int) -> None:
    lengths = [len(chain) for chain in chains]
    optimum = sum(optimum_hits(chains, lengths, num_pages))
    assert optimum == _best(chains, num_pages)
    assert optimum >= sum(lru_hits(chains, lengths, num_pages))


def test_a_last_token_is_never_hit() -> None:
    chains: list[Chain] = [[0, 1], [0, 1]]
    assert optimum_hits(chains, [2, 1], 5) == lru_hits(chains, [2, 1], 5) == [0, 1]


@pytest.mark.parametrize("num_pages", [100, 160, 300, 900])
def test_lru_is_what_the_specification_does(num_pages: int) -> None:
    """Requests one at a time, each of whole pages, the last of which is its own, and larger than no pool."""
    trace = [
        TraceRequest(0, 512 * len(one.hash_ids) - 448, 1, (*one.hash_ids[:-1], 10_000 + number))
        for number, one in enumerate(synthetic_trace(120, seed=num_pages))
        if len(one.hash_ids) <= 12
    ]
    (limit,) = limits_of(trace, 64, [num_pages])
    assert replayed(trace, num_pages=num_pages, page_size=64, live=1).hit_rate == pytest.approx(limit.lru)
    assert 0 < limit.lru <= limit.optimum


def test_pools_are_of_all_pages_down_to_a_small_part() -> None:
    trace = [request(1024, 1), request(1024, 1), request(2048, 1, 7)]
    limits = limits_of(trace, 512)
    assert [limit.num_pages for limit in limits] == [2, 4, 7]
    assert [limit.optimum for limit in limits] == [512 / 4096] * 3  # the second page ends with the last token
    assert [limit.lru for limit in limits] == [512 / 4096] * 3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "limits.json"
    assert main(["replay", "--synthetic", "30", "--limits", "20,400", "--page-size", "64", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    written = json.loads(file.read_text())
    assert (written["kvproof"], written["requests"], written["page_size"]) == ("replay limits", 30, 64)
    assert [limit["num_pages"] for limit in written["limits"]] == [20, 400]
    for limit in written["limits"]:
        assert 0 <= limit["lru"] <= limit["optimum"] < 1
        assert f"{limit['lru']:.4f}" in shown
        assert f"{limit['optimum']:.4f}" in shown


@pytest.mark.parametrize(("sizes", "complaint"), [("1", "--limits 1 must be at least 2"), ("9,x", "'x' is no number")])
def test_sizes_that_make_no_sense(sizes: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--synthetic", "3", "--limits", sizes]) == 2
    assert complaint in capsys.readouterr().err


def test_what_a_backend_hits_with_each_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """EVICT-1: lru hits what is computed of it, but for pages that prompts end amid; none is above the optimum."""
    file = tmp_path / "limits.json"
    command = ["replay", "--synthetic", "150", "--limits", "150,400", "--page-size", "64", "--json", str(file)]
    assert main([*command, "--backend", "kvproof.fast"]) == 0
    shown = capsys.readouterr().out
    for limit in json.loads(file.read_text())["limits"]:
        assert set(limit["policies"]) == set(POLICIES)
        assert limit["policies"]["lru"] == pytest.approx(limit["lru"], abs=0.02)
        assert 0 < min(limit["policies"].values()) <= max(limit["policies"].values()) <= limit["optimum"]
        assert all(f"{share:.4f}" in shown for share in limit["policies"].values())
    assert main([*command, "--backend", "kvproof.spec"]) == 0
    assert capsys.readouterr().out == shown
    assert main([*command, "--backend", "no_such_module"]) == 2


def test_a_backend_that_raises_deviates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def raising(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(kvproof.fast.CacheManager, "free", raising)
    assert main(["replay", "--synthetic", "3", "--limits", "400", "--backend", "kvproof.fast"]) == 1
    assert "RuntimeError: out of order" in capsys.readouterr().out
