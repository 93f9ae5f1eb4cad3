"""The machines: each makes random calls on the specification's object and on the backend's, and compares."""

from .attention import Attention, Latents, Limits
from .base import Machine
from .batch import Batch
from .cache import Cache
from .engine import EngineMachine
from .events import Events
from .exhaustive.worlds import SMALLEST, WORLDS
from .groups import Chunk, Hybrid, Latent, Manager, State, Window
from .hash import Hash
from .index import Index
from .kernels import GpuKernels, Kernels
from .pins import Pins
from .pool import Pool, PoolPins
from .queue import Queue
from .safe.manager import SafeAmid, SafeGroups, SafeManager
from .safe.pool import SafePool
from .safe.soak import SafeSoak
from .secrets import Secrets
from .serving import Serving
from .shards import Shards
from .sizing import Sizing
from .snapshots import Snapshots
from .soak import Soak
from .swap import Amid, Swap
from .table import MultiTable, Programs, Table
from .views import Sharded, Views

__all__ = ["EVERY_MACHINE", "EXHAUSTIVE", "MACHINES", "ON_REQUEST", "TOGETHER", "Machine"]

_DEFAULT: tuple[type[Machine], ...] = (
    *SMALLEST,
    *(Queue, Pool, PoolPins, Hash, Manager, Window, Chunk, Latent, State, Hybrid, Batch, Events, Index),
    *(Pins, Shards, Snapshots, Swap, Amid, Soak, Secrets),
    *(SafePool, SafeManager, SafeGroups, SafeAmid, SafeSoak),
    *(Table, MultiTable, Programs),
    *(Sizing, Cache, Views, Attention, Limits, Latents, Serving, Sharded, Kernels, EngineMachine),
)

MACHINES = {machine.name: machine for machine in _DEFAULT}
"""Every machine by its name, in the order in which they run: what stands on another comes after it."""

EXHAUSTIVE: dict[str, type[Machine]] = {world.name: world for world in WORLDS}
"""The small worlds of ``kvproof check --exhaustive``, by name: they take minutes each, and run only when asked for."""

ON_REQUEST: dict[str, type[Machine]] = {GpuKernels.name: GpuKernels}
"""The machines that run only where ``kvproof check --machines`` names them, by name: they take minutes."""

EVERY_MACHINE = MACHINES | EXHAUSTIVE | ON_REQUEST
"""All of them, for those who look a machine up by its name."""

TOGETHER = frozenset({"sizing", "cache", "views", "attention", "limits", "latents", "serving", "sharded", "kernels"})
"""The machines that call device functions: some share compiled programs, so that one process should run them all."""
