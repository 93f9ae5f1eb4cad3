"""The operation log: what an engine did, recorded, replayed against the specification, shortened, and drawn.

Start with `format`, which says what a log holds. `recording` writes one, `reading` reads it, `player` makes its
calls, `replaying` names the first wrong step, `shrinking` makes it short, `lockstep` does without a log.
"""
