"""SEC-3: what the commands read: traces, expected deviations and the state of a deep run, whatever stands in them."""

import argparse
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.conformance.cli import main
from kvproof.conformance.commands.check_options import Given, Options, add_options, read_options
from kvproof.conformance.commands.deep import resumed
from kvproof.conformance.console.named import BadInputError, options_of
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.document_damage import damaged
from kvproof.conformance.replay.traces import HEADER, TraceError, read_trace
from kvproof.conformance.report.xfails import XfailsError, read_xfails
from kvproof.spec import CLAUSES

LINES: list[Any] = [
    dict(HEADER),
    {"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]},
    {"timestamp": 27.5, "input_length": 1025, "output_length": 0, "hash_ids": [0, 1, 7]},
]


def attempt(read: Callable[[], object], size: int, refusal: type[Exception]) -> str:
    """Reads; returns the one line by which it is refused, or nothing. Any other error, or much memory, fails."""
    tracemalloc.start()
    message = ""
    try:
        read()
    except refusal as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < (1 << 20) + 100 * size, f"{peak} bytes for a document of {size}"
    assert message.isprintable(), repr(message)
    return message


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "document"


@settings(max_examples=100, deadline=None)
@given(number=st.integers(0, 2**32 - 1))
def test_a_damaged_trace_is_read_or_refused_in_one_line(path: Path, number: int) -> None:
    drawn = random.Random(number)
    lines, _ = damaged(LINES, drawn.randrange)
    given_lines = lines if isinstance(lines, list) else [lines]
    text = "\n".join(json.dumps(line) for line in given_lines) + "\n"
    if not drawn.randrange(4):
        place = drawn.randrange(len(text))
        text = text[:place] + drawn.choice(["\0", "\x1b[2J", "[" * 2000, "9" * 5000, "\u2028"]) + text[place:]
    path.write_text(text, encoding="utf-8")
    attempt(lambda: read_trace(path), len(text), TraceError)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=20),
            st.sampled_from([*sorted(CLAUSES)[:5], "pool:POOL-2  # why", "pool:", ":R1", "# only", "\x1b[2J", "\0"]),
        ),
        max_size=6,
    ),
    st.sampled_from(["utf-8", "utf-16", "latin-1"]),
)
def test_any_file_of_expected_deviations_is_read_or_refused_in_one_line(
    path: Path, lines: list[str], encoding: str
) -> None:
    data = "\n".join(lines).encode(encoding, "replace")
    path.write_bytes(data)
    attempt(lambda: read_xfails(path, CLAUSES, MACHINES), len(data), XfailsError)


DEEP = ["--profile", "deep", "--machines", "queue", "--clauses", "POOL-3", "--hours", "1e-9", "--examples", "3"]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state of a deep run of one round."""
    written = tmp_path_factory.mktemp("deep") / "state.json"
    assert main(["check", "--backend", "kvproof.fast", *DEEP, "--seed", "1", "--state", str(written)]) == 0
    return written.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def options(path: Path) -> Options:
    """The options of going on from it."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_options(
        options_of(Given, parser.parse_args(["--backend", "kvproof.fast", *DEEP, "--state", str(path)]))
    )


@settings(max_examples=150, deadline=None)
@given(number=st.integers(0, 2**32 - 1))
def test_a_damaged_state_of_a_deep_run_is_gone_on_from_or_refused(
    path: Path, state: str, options: Options, number: int
) -> None:
    drawn = random.Random(number)
    document, _ = damaged(json.loads(state), drawn.randrange)
    path.write_text(json.dumps(document), encoding="utf-8")
    attempt(lambda: resumed(options, 1), len(state), BadInputError)
