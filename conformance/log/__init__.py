"""The operation log: what an engine did, recorded, replayed against the specification, shortened, and drawn.

Start with `format`, which says what a log holds. `recording` writes one, `reading` reads it, `player` makes its
calls, `replaying` names the first wrong step, `shrinking` makes it short, `lockstep` does without a log.
"""

from .format import LogError
from .frames import Frame, frames
from .lockstep import Lockstep, LockstepError
from .recording import record
from .replaying import LogResult, WrongStep, replay_log

__all__ = ["Frame", "Lockstep", "LockstepError", "LogError", "LogResult", "WrongStep", "frames", "record", "replay_log"]
