"""Traces: what is read, what is refused and how, and the tokens that ids stand for."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.conformance.console.exit_status import CannotRunError
from kvproof.conformance.replay.traces import (
    BLOCK_TOKENS,
    HEADER,
    MOST_IDS,
    VOCABULARY,
    TraceError,
    TraceRequest,
    block_tokens,
    output_tokens,
    prompt_tokens,
    read_trace,
    synthetic_trace,
    write_trace,
)

GOOD: dict[str, Any] = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}

ids = st.integers(0, MOST_IDS - 1)


def line(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


def without(name: str) -> str:
    return json.dumps({key: value for key, value in GOOD.items() if key != name})


def written(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in lines))
    return path


# -- Tokens ---------------------------------------------------------------------------------------


@given(st.lists(ids, min_size=1, max_size=4))
def test_a_block_depends_on_its_id_alone(hash_ids: list[int]) -> None:
    blocks = block_tokens(hash_ids)
    assert blocks.shape == (len(hash_ids), BLOCK_TOKENS)
    assert blocks.dtype == np.int32
    assert blocks.min() >= 0
    assert blocks.max() < VOCABULARY
    for block, hash_id in zip(blocks, hash_ids, strict=True):
        assert np.array_equal(block, block_tokens([hash_id])[0])


@given(ids, ids)
def test_two_tokens_tell_blocks_apart(one: int, other: int) -> None:
    assert np.array_equal(block_tokens([one])[0, :2], block_tokens([other])[0, :2]) == (one == other)


@given(st.lists(ids, min_size=1, max_size=3), st.lists(ids, min_size=1, max_size=3), st.integers(1, BLOCK_TOKENS))
def test_prompts_agree_as_far_as_their_ids(one: list[int], other: list[int], last: int) -> None:
    lengths = [(len(hash_ids) - 1) * BLOCK_TOKENS + last for hash_ids in (one, other)]
    mine = prompt_tokens(TraceRequest(0, lengths[0], 1, tuple(one)))
    yours = prompt_tokens(TraceRequest(0, lengths[1], 1, tuple(other)))
    assert [len(mine), len(yours)] == lengths
    common = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    alike = min(lengths) if common is None else min(common * BLOCK_TOKENS, *lengths)
    assert np.array_equal(mine[:alike], yours[:alike])
    if common is not None and min(lengths) >= alike + 2:
        assert not np.array_equal(mine[: alike + 2], yours[: alike + 2])


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(2, 600))
def test_requests_generate_different_tokens(one: int, other: int, count: int) -> None:
    first, second = output_tokens(one, count), output_tokens(other, count)
    assert first.shape == (count,)
    assert first.dtype == np.int32
    assert np.array_equal(first, output_tokens(one, 600)[:count])
    assert np.array_equal(first, second) == (one == other)


def test_the_tokens_of_an_id_never_change() -> None:
    """A trace replayed elsewhere, or by a later version, is the same trace."""
    assert block_tokens([0, 182_789])[:, [0, 1, 2, 3, 511]].tolist() == FIRST_TOKENS
    assert output_tokens(7, 4).tolist() == FIRST_OUTPUT


FIRST_TOKENS = [[0, 0, 11675, 5841, 3590], [22789, 5, 19822, 22350, 18187]]
FIRST_OUTPUT = [7, 0, 13751, 6644]


# -- Reading --------------------------------------------------------------------------------------


def test_reads_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path, line(), "", line(timestamp=2.5, chat_id="of no interest", output_length=0))
    assert read_trace(path) == [TraceRequest(0, 600, 5, (0, 1)), TraceRequest(2.5, 600, 0, (0, 1))]


def test_limit_reads_no_further(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(HEADER), line(), line(), "{")
    assert len(read_trace(path, limit=2)) == 2
    with pytest.raises(TraceError, match="line 4"):
        read_trace(path)


BAD_LINES = {
    "cut short": (line()[:-10], "no valid JSON"),
    "no JSON": ("hello", "no valid JSON: Expecting value at column 1"),
    "no text": (b'{"\xff": 1}', "no valid JSON: invalid start byte at byte 3"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "many digits": (f"[{'9' * 5000}]", "limit"),
    "a list": ("[1, 2]", r"a line must be an object, not \[1, 2\]"),
    "a number": ("17", "a line must be an object, not 17"),
    **{f"no {name}": (without(name), f"{name} is missing") for name in GOOD},
    "text for a length": (line(input_length="600"), 'input_length must be an integer, not "600"'),
    "a bool for a length": (line(output_length=True), "output_length must be an integer, not true"),
    "a fraction of a token": (line(input_length=600.0), "input_length must be an integer, not 600.0"),
    "a bool for a time": (line(timestamp=False), "timestamp must be a number, not false"),
    "a null time": (line(timestamp=None), "timestamp must be a number, not null"),
    "no number for a time": (line(timestamp=float("nan")), "timestamp=NaN must be finite"),
    "before time": (line(timestamp=-1), "timestamp=-1 must be finite and at least 0"),
    "no input": (line(input_length=0, hash_ids=[]), "input_length=0 must be in"),
    "negative input": (line(input_length=-600), "input_length=-600 must be in"),
    "negative output": (line(output_length=-1), "output_length=-1 must be in"),
    "endless output": (line(output_length=2**31), "output_length=2147483648 must be in"),
    "ids no list": (line(hash_ids=3), "hash_ids must be a list, not 3"),
    "an id no integer": (line(hash_ids=[0, "1"]), r'hash_ids\[1\] must be an integer, not "1"'),
    "an id a bool": (line(hash_ids=[True, 1]), r"hash_ids\[0\] must be an integer, not true"),
    "a negative id": (line(hash_ids=[0, -1]), r"hash_ids\[1\]=-1 must be in"),
    "an id too large": (line(hash_ids=[0, MOST_IDS]), r"hash_ids\[1\]=1024000000 must be in"),
    "too few ids": (line(hash_ids=[0]), "hash_ids names 1 blocks, input_length=600 has 2"),
    "too many ids": (line(hash_ids=[0, 1, 2]), "hash_ids names 3 blocks, input_length=600 has 2"),
    "a long value": (line(hash_ids="x" * 999), r'hash_ids must be a list, not "x{36}\.\.\.$'),
    "a header amid": (json.dumps(HEADER), "timestamp is missing"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, bad: str | bytes, reason: str) -> None:
    path = written(tmp_path, line(), bad, line())
    with pytest.raises(TraceError, match=reason) as refusal:
        read_trace(path)
    assert f"{path}, line 2: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


HEADERS = {
    "another kind": ({"kvproof": "operation log", "version": 1}, "an operation log, version 1: .* traces only"),
    "a report": ({"kvproof": "replay report", "version": 2}, "a replay report, version 2: .* traces only"),
    "newer": ({"kvproof": "trace", "version": 2}, "a trace, version 2: this version replays version 1 only"),
    "without version": ({"kvproof": "trace"}, "a header without a kind and a version"),
    "version a bool": ({"kvproof": "trace", "version": True}, "a header without a kind and a version"),
    "kind a number": ({"kvproof": 1, "version": 1}, "a header without a kind and a version"),
}


@pytest.mark.parametrize(("header", "reason"), HEADERS.values(), ids=HEADERS)
def test_other_headers_are_refused(tmp_path: Path, header: dict[str, object], reason: str) -> None:
    with pytest.raises(TraceError, match=f"line 1: {reason}"):
        read_trace(written(tmp_path, json.dumps(header), line()))


def test_files_that_hold_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl: No such file"):
        read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="the trace has no requests"):
        read_trace(written(tmp_path))
    with pytest.raises(TraceError, match="the trace has no requests"):
        read_trace(written(tmp_path, json.dumps(HEADER), "", ""))


# -- Making up and writing ------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trace = synthetic_trace(50, seed=3)
    path = tmp_path / "made-up.jsonl"
    write_trace(path, trace)
    assert json.loads(path.read_text().splitlines()[0]) == {"kvproof": "trace", "version": 1}
    assert read_trace(path) == trace
    with pytest.raises(CannotRunError, match="No such file"):
        write_trace(tmp_path / "nowhere" / "trace.jsonl", trace)


def test_a_seed_makes_a_trace() -> None:
    assert synthetic_trace(40, seed=1) == synthetic_trace(40, seed=1)
    assert synthetic_trace(40, seed=1) != synthetic_trace(40, seed=2)


def test_turns_extend_earlier_turns() -> None:
    trace = synthetic_trace(100)
    assert all(earlier.timestamp <= later.timestamp for earlier, later in pairwise(trace))
    prefixes: set[tuple[int, ...]] = set()
    extended = 0
    for request in trace:
        full = request.hash_ids[: request.input_length // BLOCK_TOKENS]
        extended += any(full[:length] in prefixes for length in range(1, len(full) + 1))
        prefixes.add(full)
    assert extended > 50
