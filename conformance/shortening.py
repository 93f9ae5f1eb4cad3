"""Makes a counterexample shorter: leaves out steps that it does without.

Hypothesis makes what a step draws simpler, and is slow to see that a whole step can go. Here a sequence of steps
is taken again from what each drew, without some of them, and kept if it still deviates by the same clause.
"""

from .deviation import Deviation
from .machines import Machine
from .session import EnoughError, Session, TracedStep

__all__ = ["shorten"]


def shorten(machine: type[Machine], session: Session, seconds: float) -> None:
    """Shortens the session's shortest deviation; the session keeps what is shorter.

    Args:
        machine: the machine, bound to the session.
        session: what the machine found.
        seconds: how long it may take.
    """
    found = session.shortest
    if found is None:
        return
    session.grant(seconds)
    try:
        before = len(found.trace) + 1
        while len(found.trace) < before:
            before = len(found.trace)
            found = _leave_out(machine, found)
    except EnoughError:
        return


def _leave_out(machine: type[Machine], found: Deviation) -> Deviation:
    """Leaves out runs of steps, long ones first; never the first step, which builds, nor the last, which deviates."""
    size = max(len(found.trace) // 2, 1)
    while size:
        place = 1
        while place < len(found.trace) - 1:
            rest = found.trace[min(place + size, len(found.trace) - 1) :]
            shorter = _repeat(machine, found.trace[:place] + rest, found.clause)
            if shorter is None:
                place += size
            else:
                found = shorter
        size //= 2
    return found


def _repeat(machine: type[Machine], steps: tuple[TracedStep, ...], clause: str) -> Deviation | None:
    """Takes steps again. Returns the deviation by a clause that they end in; None if they do not."""
    taken = machine()
    try:
        for step in steps:
            taken.repeat_step(step)
    except Deviation as found:
        return found if found.clause == clause else None
    except Exception:  # steps that build on one that was left out may be impossible, in any way
        return None
    return None
