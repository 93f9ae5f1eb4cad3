"""Whoever keeps the frames of calls changes nothing: a profiler in the process, a debugger, a log of errors.

A frame keeps its variables, and a view among them keeps the bytes that it shows from growing or shrinking.
"""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from kvproof import fast
from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.search.runner import run_machine

OURS = fast.__name__


@contextmanager
def frames_kept(most: int) -> Iterator[None]:
    """Keeps the last frames of the fast backend that have ended."""
    kept: deque[FrameType] = deque(maxlen=most)

    def keep(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_globals.get("__name__", "").startswith(OURS):
            kept.append(frame)

    before = sys.getprofile()
    sys.setprofile(keep)
    try:
        yield
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("name", ["pool", "manager", "batch", "amid", "swap", "snapshots", "events"])
def test_kept_frames_change_nothing(name: str) -> None:
    """Machines of all rooms, with more frames kept than a call has."""
    with frames_kept(2_000):
        report = run_machine(MACHINES[name], load_backend("kvproof.fast"), seed=5, effort=0.1)
    assert not report.deviations, str(report.deviations[0])
