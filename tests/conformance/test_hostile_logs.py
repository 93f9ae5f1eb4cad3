"""SEC-3: what a log that says little, or claims much, comes to; and what is left of one whose engine was killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof.conformance import LogError, replay_log
from kvproof.conformance.cli import main

HEADER = '{"kvproof": "log", "version": 1, "tokens": "mapped", "names": "shown"}\n'
POOL: dict[str, Any] = {"num_pages": 1 << 20, "enable_caching": True}
TABLE: dict[str, Any] = {"max_num_reqs": 1 << 10, "max_num_pages_per_req": 1 << 14, "max_num_batched_tokens": 1 << 22}
MANAGER: dict[str, Any] = {"num_pages": 2, "kv_cache_groups": [], "max_model_len": 9, "num_host_pages": 1 << 20}


def made(*objects: tuple[str, dict[str, Any]]) -> str:
    """A log in which objects are made, and nothing else."""
    entries = [["make", number, name, arguments] for number, (name, arguments) in enumerate(objects)]
    return HEADER + "".join(json.dumps([entry]) + "\n" for entry in entries)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([("PagePool", POOL | {"num_pages": 3}), *[("PagePool", POOL)] * 40], "pages in all"),
        ([("CacheManager", MANAGER)] * 40, "pages in all"),
        ([("CacheManager", MANAGER | {"num_host_pages": 1 << 40})], "num_host_pages"),
        ([("PageTable", TABLE)] * 40, "entries in all"),
        ([("PageTable", dict.fromkeys(TABLE, 1) | {"max_num_batched_tokens": 1 << 22})] * 40, "entries in all"),
    ],
)
def test_objects_that_together_are_too_large_are_refused_before_they_are_made(
    tmp_path: Path, objects: list[tuple[str, dict[str, Any]]], message: str
) -> None:
    """A log of some kilobytes can't ask for gigabytes: what it makes is bounded in all."""
    path = tmp_path / "large.log"
    path.write_text(made(*objects))
    with pytest.raises(LogError, match=message):
        replay_log(path, "kvproof.fast")


@pytest.mark.parametrize(
    "text",
    [
        HEADER,
        HEADER + '[["end",0]]\n',
        made(("PagePool", POOL | {"num_pages": 3})),
        made(("PagePool", POOL | {"num_pages": 3})) + '[["end",0]]\n',
        HEADER + "\0" * 5000,
        "\0" * 5000,
        HEADER.rstrip(),
    ],
    ids=["header", "closed", "made", "made and closed", "NULs behind", "NULs", "header cut off"],
)
def test_a_log_without_operations_is_no_good_news(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Nothing was compared, so that nothing is known: the command could not run, and says so in one line."""
    path = tmp_path / "empty.log"
    path.write_text(text)
    with pytest.raises(LogError, match=r"empty\.log"):
        replay_log(path)
    page = tmp_path / "page.html"
    for command in (["replay"], ["shrink"], ["show", "-o", str(page)]):
        assert main([*command, str(path)]) == 2
        told = capsys.readouterr()
        assert "no difference" not in told.out
        assert "right" not in told.err, "nothing was compared"
        assert told.err.count("\n") == 1
    assert not page.exists()


def test_no_difference_is_said_of_what_was_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that breaks off is good up to there, and the report says how far that is."""
    path = tmp_path / "cut.log"
    path.write_text(
        made(("PagePool", POOL | {"num_pages": 3})) + '[["call",0,"get_num_free_pages",{},2]]\n' + "\0" * 99
    )
    assert main(["replay", str(path)]) == 0
    told = capsys.readouterr().out
    assert "incomplete" in told
    assert told.rstrip().endswith("no difference up to there")


KILLED = """
import os, sys
import kvproof.fast
from kvproof.conformance import record
pool = record(kvproof.fast.PagePool(9, True), sys.argv[1])
pool.get_num_free_pages()
if len(sys.argv) > 2:
    pool.flush()
    pool.get_usage()
os._exit(9)
"""


def test_the_log_of_a_killed_process_is_a_log(tmp_path: Path) -> None:
    """Its header is written at once, and what was noted when it is asked for."""
    path = tmp_path / "killed.log"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=120)
    assert json.loads(path.read_text())["kvproof"] == "log"
    with pytest.raises(LogError, match="a log without operations, not closed"):
        replay_log(path)
    subprocess.run([sys.executable, "-c", KILLED, str(path), "flush"], check=False, timeout=120)
    result = replay_log(path)
    assert (result.operations, result.wrong) == (1, None)
    assert result.cut is not None
