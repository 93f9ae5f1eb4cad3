"""Options of pools, managers and attention are declared once: both packages take them, with the same defaults."""

import hashlib
import inspect
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, TypedDict, Unpack

import jax
import pytest
from jax.sharding import AxisType

from kvproof import fast, spec
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.engine.config import LayerKind, ModelConfig
from kvproof.conformance.engine.model import init_params
from kvproof.conformance.engine.serving import Engine
from kvproof.spec.declarations import (
    AttentionOptions,
    ManagerOptions,
    PoolOptions,
    defaults_of,
    pool_options,
    takes_options,
)

from .cache_groups import full

PACKAGES = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])


def _other_hash(message: bytes) -> bytes:
    return hashlib.sha512(message).digest()


OTHER: dict[str, Any] = {
    "hash_seed": b"another seed",
    "hash_function": _other_hash,
    "unhashed_first": True,
    "enable_events": True,
    "counter_sampling": 3,
    "eviction": "reuse",
    "max_pinned_pages": 5,
    "max_pinned_pages_per_salt": 2,
    "num_host_pages": 4,
    "retention_interval": 8,
    "match_unit": 2,
}
"""For each option a value that is not its default."""

EVERY = pytest.mark.parametrize("name", sorted(defaults_of(ManagerOptions)))
POOLS = pytest.mark.parametrize("name", sorted(defaults_of(PoolOptions)))


def _pool_shows(pool: Any, name: str) -> Any:
    """What a pool made of an option; of the seed the root of its keys, as the seed is not kept."""
    return pool.none_hash if name == "hash_seed" else getattr(pool, name)


def _wanted(package: ModuleType, name: str) -> Any:
    return package.init_none_hash(OTHER[name]) if name == "hash_seed" else OTHER[name]


def _shows(package: ModuleType, manager: Any, name: str) -> None:
    if name in defaults_of(PoolOptions):
        assert _pool_shows(manager.page_pool, name) == _wanted(package, name)
    else:
        assert getattr(manager, name) == OTHER[name]


def test_every_option_has_another_value_here() -> None:
    defaults = defaults_of(ManagerOptions)
    assert OTHER.keys() == defaults.keys()
    assert all(OTHER[name] != default for name, default in defaults.items())


@PACKAGES
@pytest.mark.parametrize(
    ("kind", "declared"),
    [("PagePool", PoolOptions), ("CacheManager", ManagerOptions), ("ShardedCacheManager", ManagerOptions)],
)
def test_a_constructor_shows_each_option_as_declared_and_no_other_keyword(
    package: ModuleType, kind: str, declared: type
) -> None:
    parameters = inspect.signature(getattr(package, kind)).parameters.values()
    keywords = {known.name: known.default for known in parameters if known.kind is known.KEYWORD_ONLY}
    assert keywords == defaults_of(declared)
    assert not any(known.kind is known.VAR_KEYWORD for known in parameters)


@PACKAGES
@pytest.mark.parametrize("name", ["ragged_paged_attention", "fused_ragged_paged_attention"])
def test_attention_shows_each_option_as_declared_and_no_other_keyword(package: ModuleType, name: str) -> None:
    """Fast's are functions of the kernels, which import no declarations: they are held to them here."""
    parameters = inspect.signature(getattr(package, name)).parameters.values()
    keywords = {known.name: known.default for known in parameters if known.kind is known.KEYWORD_ONLY}
    assert list(keywords.items()) == list(defaults_of(AttentionOptions).items())
    assert not any(known.kind is known.VAR_KEYWORD for known in parameters)


def test_attention_refuses_a_keyword_that_is_no_option() -> None:
    with pytest.raises(TypeError, match=r"^ragged_paged_attention\(\) got an unexpected keyword argument 'windows'$"):
        spec.ragged_paged_attention(*[None] * 6, windows=2)  # type: ignore[call-arg]


def test_the_engine_shows_each_option_as_declared() -> None:
    parameters = inspect.signature(Engine).parameters
    shown = {name: parameters[name].default for name in defaults_of(ManagerOptions)}
    assert shown == {**defaults_of(ManagerOptions), "eviction": "adaptive"}, "an engine's pools are for hits"


@PACKAGES
@POOLS
def test_an_option_reaches_a_pool(package: ModuleType, name: str) -> None:
    assert _pool_shows(package.PagePool(8, True, **{name: OTHER[name]}), name) == _wanted(package, name)


@PACKAGES
@EVERY
def test_an_option_reaches_a_manager_and_its_pool(package: ModuleType, name: str) -> None:
    _shows(package, package.CacheManager(8, [full(2)], 12, **{name: OTHER[name]}), name)


@PACKAGES
@EVERY
def test_an_option_reaches_every_shard(package: ModuleType, name: str) -> None:
    shards = package.ShardedCacheManager(2, 8, [full(2)], 12, **{name: OTHER[name]}).shards
    assert len(shards) == 2
    for shard in shards:
        _shows(package, shard, name)


def _engine(**options: Any) -> Engine:
    config = ModelConfig(24, 16, 24, 4, 2, 4, (LayerKind("full"),), 40)
    sizes: dict[str, Any] = {"num_pages": 8, "page_size": 4, "optimise": False}
    return Engine((config, init_params(config, 1)), **sizes, **options)


@EVERY
@pytest.mark.parametrize("shards", [1, 2])
def test_an_option_reaches_the_managers_of_an_engine(name: str, shards: int) -> None:
    mesh = jax.make_mesh((shards, 1), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2) if shards > 1 else None
    if shards > 1 and name == "num_host_pages":  # requests move between shards
        with pytest.raises(ValueError, match=r"^num_host_pages=4 must be 0 with 2 data shards \[R1\]$"):
            _engine(mesh=mesh, num_host_pages=4)
        return
    schedulers = _engine(mesh=mesh, **{name: OTHER[name]}).schedulers
    assert len(schedulers) == shards
    for scheduler in schedulers:
        _shows(fast, scheduler.manager, name)


@EVERY
def test_an_engine_refuses_an_option_that_its_backend_does_not_take(name: str) -> None:
    """R1; but for the seed, which a backend may draw."""

    def manager(num_pages: int, groups: Any, max_model_len: int, enable_caching: bool) -> Any:
        return fast.CacheManager(num_pages, groups, max_model_len, enable_caching)

    backend = Backend("old", SimpleNamespace(**{**vars(fast), "CacheManager": manager}))
    if name == "hash_seed":
        assert _engine(backend=backend, hash_seed=b"seed").schedulers
        return
    with pytest.raises(ValueError, match=rf"^{name}=.*: the backend's manager takes none \[R1\]$"):
        _engine(backend=backend, **{name: OTHER[name]})


@PACKAGES
@pytest.mark.parametrize("kind", ["PagePool", "CacheManager", "ShardedCacheManager"])
def test_a_keyword_that_is_no_option_is_refused_by_its_name(package: ModuleType, kind: str) -> None:
    given: tuple[Any, ...] = {
        "PagePool": (8, True),
        "CacheManager": (8, [], 12),
        "ShardedCacheManager": (2, 8, [], 12),
    }[kind]
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'max_pins'$"):
        getattr(package, kind)(*given, max_pins=1)
    if kind == "PagePool":
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'num_host_pages'$"):
            package.PagePool(8, True, num_host_pages=1)


class _Declared(TypedDict, total=False):
    depth: Annotated[int, 4]
    name: Annotated[str | None, None]


class _Thing:
    @takes_options
    def __init__(self, size: int, *, width: int = 1, **options: Unpack[_Declared]) -> None:
        self.options, self.shape = options, (size, width)


class _Own(_Thing):
    def __init__(self, size: int) -> None:
        super().__init__(size, depth=7)


def test_a_constructor_takes_what_is_declared() -> None:
    assert str(inspect.signature(_Thing)) == (
        "(size: int, *, width: int = 1, depth: int = 4, name: str | None = None) -> None"
    )
    assert str(inspect.signature(_Own)) == "(size: int) -> None"
    assert _Thing(2).options == {"depth": 4, "name": None}
    given = _Thing(size=2, width=3, name="n")
    assert (given.options, given.shape) == ({"depth": 4, "name": "n"}, (2, 3))
    assert _Own(5).options == {"depth": 7, "name": None}


def test_a_managers_options_hold_those_of_its_pool() -> None:
    options: Any = dict(OTHER)
    assert pool_options(options) == {name: OTHER[name] for name in defaults_of(PoolOptions)}
