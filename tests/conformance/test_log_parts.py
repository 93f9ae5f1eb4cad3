"""What a log is made of: columns of numbers, token ids, requests that come and go."""

import json
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof.fast
from kvproof.conformance import record, replay_log
from kvproof.conformance.log.values import TokenTexts, as_column, decoded, encoded, listed, numbers_of, tokens_of
from kvproof.conformance.report.redaction import Redaction
from kvproof.spec.declarations import Request

from .small_engine import full

NUMBERS = st.lists(st.one_of(st.integers(0, 50), st.integers(-(2**40), 2**40)), min_size=1, max_size=12)


@given(NUMBERS, NUMBERS)
def test_columns_come_back(before: list[int], column: list[int]) -> None:
    written = json.loads(encoded(as_column(column), as_column(before)))
    assert decoded(written, before) == column
    assert numbers_of(json.loads(listed(column))) == numbers_of(json.loads(listed(np.array(column)))) == column


SHOWN, MAPPED = TokenTexts(shown=True), TokenTexts(shown=False)
TOKENS = st.one_of(st.integers(0, 300), st.integers(2**18 - 2, 2**18 + 2), st.integers(-(2**31), 2**31 - 1))


@settings(max_examples=40)
@given(st.lists(TOKENS, unique=True, max_size=50))
def test_tokens_are_mapped_one_to_one_or_come_back(tokens: list[int]) -> None:
    """SEC-2."""
    given = np.array(tokens, np.int32)
    assert tokens_of(json.loads(SHOWN.text(given))).tolist() == tokens
    mapped = tokens_of(json.loads(MAPPED.text(given)))
    assert len(set(mapped.tolist())) == len(tokens)
    assert ((mapped < 0) == (given < 0)).all()
    alone = [tokens_of(MAPPED.entry(given[place : place + 1])) for place in range(len(tokens))]
    assert [one.tolist() for one in alone] == [[token] for token in mapped.tolist()]


def test_the_map_of_tokens_is_drawn_for_each_log() -> None:
    """SEC-2: a permutation of the common ids, another one each time."""
    common = np.arange(1 << 18, dtype=np.int32)
    maps = [tokens_of(each.entry(common)) for each in (MAPPED, TokenTexts(shown=False))]
    assert all((np.sort(own) == common).all() for own in maps)
    assert (maps[0] == maps[1]).sum() < 100
    assert (maps[0] == common).sum() < 100


def test_nothing_that_was_noted_is_a_token(tmp_path: Path) -> None:
    """SEC-2: what waits to be written is mapped already, and nothing of a request is kept behind the end."""
    with record(kvproof.fast.CacheManager(9, [full(2)], 16), tmp_path / "a.log") as manager:
        writer = manager.__dict__["_kvproof_writer"]
        request = Request("a", [4321, 4322, 4323])
        manager.get_computed_pages(request)
        waiting = [json.loads(line) for line in writer.requests.lines]
        (tokens,) = [entry[3] for entry in waiting if entry[0] == "request"]
        assert not set(tokens_of(tokens).tolist()) & {4321, 4322, 4323}
        assert writer.requests.by_id
    manager.free(request)
    manager.allocate_slots(request, 3)
    assert not writer.notes + writer.slots + writer.requests.lines + list(writer.requests.by_id)


def test_many_requests_that_come_and_go_are_told_in_full(tmp_path: Path) -> None:
    """More than are remembered, some of which come back, with tokens that came since."""
    requests = [Request(str(place), [place % 7, 1, 2]) for place in range(600)]
    with record(kvproof.fast.CacheManager(9, [full(2)], 16), tmp_path / "a.log") as manager:
        for place in [*range(600), *range(590, 600), *range(10)]:
            request = requests[place]
            pages, found = manager.get_computed_pages(request)
            manager.allocate_slots(request, request.num_tokens - found, found, pages)
            request.num_computed_tokens = request.num_tokens
            request.append(place % 5)
            manager.allocate_slots(request, 1)
            manager.free(request)
            request.num_computed_tokens = 0
        assert len(manager.__dict__["_kvproof_writer"].requests.by_id) < 300
    result = replay_log(tmp_path / "a.log")
    assert (result.wrong, result.cut, result.operations) == (None, None, 4 * 620)


@settings(max_examples=15)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), unique=True, max_size=50), st.binary(max_size=8))
def test_redaction_keeps_equality_and_sign(tokens: list[int], key: bytes) -> None:
    """SEC-2."""
    mapped = Redaction(key).tokens(np.array(tokens, np.int32)).tolist()
    assert len(set(mapped)) == len(tokens)
    assert [token < 0 for token in mapped] == [token < 0 for token in tokens]
    assert mapped == [Redaction(key).token(token) for token in tokens[:3]] + mapped[3:]


def test_a_log_from_before_a_counter_is_replayed(tmp_path: Path) -> None:
    """MAN-12: what nobody counted when it was recorded is not compared; what was counted is."""
    file = tmp_path / "a.log"
    with record(kvproof.fast.CacheManager(9, [full(2)], 16), file) as manager:
        for _ in range(2):
            request = Request("a", [1, 2, 3])
            manager.allocate_slots(request, 3)
            assert manager.counters.requests
            manager.free(request)
    text = file.read_text()
    assert '"resumed_hit_tokens":0' in text
    old = text.replace(',"resumed_hit_tokens":0', "").replace(',"junction_hit_tokens":0', "")
    assert "resumed" not in old
    file.write_text(old)
    assert replay_log(file).wrong is None
    file.write_text(old.replace('"queried_tokens":6', '"queried_tokens":7'))
    assert replay_log(file).wrong is not None
