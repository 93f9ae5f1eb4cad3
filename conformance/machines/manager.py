"""The manager machine: one group of full attention, or none."""

from typing import Any

from .hash import weak
from .manager_steps import ManagerSteps
from .properties import start
from .worlds import World, worlds

__all__ = ["Manager"]

_OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"unhashed_first": True}, {"hash_function": weak}),
    *({"eviction": "reuse"}, {"eviction": "adaptive"}),
)


class Manager(ManagerSteps):
    """Few requests over two tokens in a small pool, so that prefixes are shared, duplicated and evicted."""

    name = "manager"
    examples = 120

    @start(world=worlds(["full"], counts=(1,) * 9 + (0,), options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of no or one group, with one hash function or another, perhaps probed after every call."""
        self.build_managers(world)
