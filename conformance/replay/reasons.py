"""Why prompts of a trace are hit: which of the earlier requests left what they find."""

from typing import Literal

from .traces import BLOCK_TOKENS, TraceRequest

__all__ = ["Reason", "Reasons"]

Reason = Literal["own_turn", "junction", "other_request"]


class Reasons:
    """Tells the reasons of hits, by the blocks of tokens that the trace names. O(blocks) a request."""

    def __init__(self) -> None:
        self._latest: dict[int, TraceRequest] = {}
        """The latest request that was served with each block."""
        self._junctions: set[tuple[int, int]] = set()
        """Lengths at which prompts part, each with the last block before it."""

    def served(self, source: TraceRequest, hit_tokens: int, junction: int) -> Reason | None:
        """Notes a request at its admission.

        Args:
            source: the request.
            hit_tokens: the tokens of its prompt that it hit.
            junction: its junction; 0 if it has none (RET-2).

        Returns:
            ``own_turn``: the request that was served last with the end of the hit is one whose prompt this one goes on
            from, or repeats. ``junction``: the hit ends where an earlier prompt parted from another. ``other_request``:
            neither, the two have a beginning in common. None: nothing was hit.
        """
        reason: Reason | None = None
        blocks = source.hash_ids
        if hit_tokens:
            end = (hit_tokens - 1) // BLOCK_TOKENS
            earlier = self._latest.get(blocks[end])
            full = 0 if earlier is None else earlier.input_length // BLOCK_TOKENS
            if earlier is not None and full and earlier.hash_ids[:full] == blocks[:full]:
                reason = "own_turn"
            else:
                reason = "junction" if (hit_tokens, blocks[end]) in self._junctions else "other_request"
        if junction:
            self._junctions.add((junction, blocks[(junction - 1) // BLOCK_TOKENS]))
        self._latest.update(dict.fromkeys(blocks, source))
        return reason
