"""Who the rows are run on: `kvproof.fast`, and the managers of other packages where those are installed."""

from .implementation import Implementation
from .ours import Ours
from .peer_easydel import EasyDel
from .peer_vllm import Vllm

__all__ = ["IMPLEMENTATIONS"]

IMPLEMENTATIONS: tuple[Implementation, ...] = (Ours(), Vllm(), EasyDel())
"""Ours first."""
