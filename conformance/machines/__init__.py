"""The machines: each makes random calls on the specification's object and on the backend's, and compares."""

from .attention import Attention, Latents, Limits
from .base import Machine
from .batch import Batch
from .cache import Cache
from .events import Events
from .groups import Chunk, Hybrid, Latent, State, Window
from .hash import Hash
from .kernels import Kernels
from .manager import Manager
from .multi_table import MultiTable
from .pins import Pins
from .pool import Pool
from .pool_pins import PoolPins
from .programs import Programs
from .queue import Queue
from .safe.manager import SafeGroups, SafeManager
from .safe.pool import SafePool
from .secrets import Secrets
from .serving import Serving
from .shards import Shards
from .sizing import Sizing
from .snapshots import Snapshots
from .table import Table
from .views import Sharded, Views

__all__ = ["MACHINES", "TOGETHER", "Machine"]

MACHINES: dict[str, type[Machine]] = {
    machine.name: machine
    for machine in (
        *(
            Queue,
            Pool,
            PoolPins,
            Hash,
            Manager,
            Window,
            Chunk,
            Latent,
            State,
            Hybrid,
            Batch,
            Events,
            Pins,
            Shards,
            Snapshots,
            Secrets,
        ),
        *(SafePool, SafeManager, SafeGroups),
        *(Table, MultiTable, Programs),
        *(Sizing, Cache, Views, Attention, Limits, Latents, Serving, Sharded, Kernels),
    )
}
"""Every machine by its name, in the order in which they run: what stands on another comes after it."""

TOGETHER = frozenset({"sizing", "cache", "views", "attention", "limits", "latents", "serving", "sharded", "kernels"})
"""The machines that call device functions: some share compiled programs, so that one process should run them all."""
