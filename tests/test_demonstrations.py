"""What the demonstrations do of themselves, without the packages that they show us in."""

import copy
import importlib
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvproof import fast

HOME = "easydel.inference.esurge"
STAND_INS = ("easydel", "easydel.inference", HOME, *(f"{HOME}.{name}" for name in ("runners", "scheduler")))
PARTS = ((HOME, "request"), (f"{HOME}.runners", "sequence_buffer"), (f"{HOME}.scheduler", "scheduler"))


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`easydel_glue`, with empty modules where it imports EasyDeL's."""
    made = {name: ModuleType(name) for name in STAND_INS}
    for home, name in PARTS:
        setattr(made[home], name, ModuleType(f"{home}.{name}"))
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "tests.demonstrations.easydel_glue", raising=False)
    yield importlib.import_module("tests.demonstrations.easydel_glue")
    sys.modules.pop("tests.demonstrations.easydel_glue", None)


def test_a_manager_that_was_not_made_says_so(glue: Any) -> None:
    """EasyDeL's tests make managers without `__init__`, as `copy` does: what they lack is no endless look-up."""
    unmade = object.__new__(glue.Manager)
    for name in ("ours", "get_page_ids", "page_pool"):
        with pytest.raises(AttributeError, match="was not made"):
            getattr(unmade, name)
    assert isinstance(copy.copy(unmade), glue.Manager)


def test_all_else_is_the_managers_own(glue: Any) -> None:
    made = glue.Manager(9, [], 8)
    assert made.num_pages == 9
    assert made.page_pool is made.ours.page_pool
    with pytest.raises(AttributeError):
        _ = made.no_such_name


# -- vLLM's scheduler -------------------------------------------------------------------------------

VLLM = {
    "vllm.distributed.kv_events": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
    "vllm.v1.core.kv_cache_manager": ("KVCacheManager",),
    "vllm.v1.kv_cache_interface": ("FullAttentionSpec", "SlidingWindowSpec"),
    "vllm.v1.metrics.stats": ("PrefixCacheStats",),
}
SIZE = 4


@pytest.fixture
def vllm_glue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`vllm_glue`, with stand-ins of those classes of vLLM's that it names."""
    homes = {".".join(name.split(".")[:count]) for name in [*VLLM, "vllm.v1.core.sched"] for count in range(1, 5)}
    made = {home: ModuleType(home) for home in homes}
    for home, names in VLLM.items():
        for name in names:
            setattr(made[home], name, type(name, (SimpleNamespace,), {"prefix_replay_tokens": 0}))
    made["vllm.distributed.kv_events"].__dict__["MEDIUM_GPU"] = "GPU"
    made["vllm.v1.core.sched"].__dict__["scheduler"] = ModuleType("scheduler")
    made["vllm.v1.kv_cache_interface"].__dict__.update(
        get_kv_cache_spec_kind=lambda spec: SimpleNamespace(value=type(spec).__name__),
        get_kv_cache_spec_sliding_window=lambda spec: vars(spec).get("sliding_window"),
    )
    own = made["vllm.v1.core.kv_cache_manager"].__dict__["KVCacheManager"]
    own.prefix_cache_lookup_enabled = lambda self, _: self.enable_caching
    own.make_prefix_cache_stats = own.record_prefix_cache_stats = None
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "tests.demonstrations.vllm_glue", raising=False)
    yield importlib.import_module("tests.demonstrations.vllm_glue")
    sys.modules.pop("tests.demonstrations.vllm_glue", None)


class VllmRequest(SimpleNamespace):
    """What the glue reads of a request of vLLM's."""

    def __init__(self, request_id: str, tokens: list[int]) -> None:
        super().__init__(
            request_id=request_id, _all_token_ids=tokens, mm_features=(), cache_salt=None, lora_request=None,
            prompt_embeds=None, num_computed_tokens=0, num_in_flight_tokens=0, done=False,
            status=SimpleNamespace(name="WAITING"),
        )  # fmt: skip

    def is_finished(self) -> bool:
        return bool(self.done)


def vllm_manager(glue: Any, num_blocks: int, kind: str = "FullAttentionSpec", **options: Any) -> Any:
    more = {"sliding_window": 6} if kind == "SlidingWindowSpec" else {}
    made = getattr(sys.modules["vllm.v1.kv_cache_interface"], kind)
    spec = made(block_size=SIZE, num_kv_heads=1, head_size=8, head_size_v=8, dtype="torch.float32", **more)
    group = SimpleNamespace(kv_cache_spec=spec, is_eagle_group=False)
    config = SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=[group], needs_kv_cache_zeroing=False)
    return glue.Manager(config, 64, SIZE, SIZE, **options)


@pytest.mark.parametrize("kind", ["FullAttentionSpec", "SlidingWindowSpec"])
@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("seed", range(4))
def test_under_vllm_each_request_gets_what_single_calls_give(
    vllm_glue: Any, kind: str, num_blocks: int, seed: int
) -> None:
    """Pages taken and published ahead of their time or late: hits, numbers of pages and refusals are the same."""
    draw = random.Random(seed)
    manager = vllm_manager(vllm_glue, num_blocks, kind, max_in_flight_tokens=24)
    plain = fast.CacheManager(num_blocks, manager.ours.kv_cache_groups, 64)
    running: list[tuple[VllmRequest, fast.Request]] = []
    taken = refused = 0
    for step in range(120):
        manager.new_step_starts()
        for pair in list(running):
            theirs, ours = pair
            if pair not in running or draw.random() < 0.1:
                continue
            while (blocks := manager.allocate_slots(theirs, 1)) is None:
                assert plain.allocate_slots(ours, 1) is None
                refused += 1
                for gone in [running.pop()]:
                    manager.free(gone[0])
                    plain.free(gone[1])
                if pair not in running:
                    break
            if blocks is None:
                continue
            expected = plain.allocate_slots(ours, 1)
            assert expected is not None
            taken += sum(map(len, blocks.get_block_ids()))
            assert list(map(len, blocks.get_block_ids())) == list(map(len, expected.get_page_ids()))
            token = draw.randrange(2)
            theirs._all_token_ids.append(token)
            ours.append(token)
            theirs.num_computed_tokens += 1
            ours.num_computed_tokens += 1
            if len(theirs._all_token_ids) > 50 or draw.random() < 0.03:
                theirs.done = True
                running.remove(pair)
                manager.free(theirs)
                plain.free(ours)
        if len(running) < 6:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(2, 20))]
            theirs, ours = VllmRequest(str(step), list(prompt)), fast.Request(str(step), prompt)
            hits, num_hit, _ = manager.get_computed_blocks(theirs)
            pages, expected_hit = plain.get_computed_pages(ours)
            assert num_hit == expected_hit
            new = len(prompt) - num_hit
            granted = manager.allocate_slots(theirs, new, num_hit, hits, full_sequence_must_fit=True)
            assert (granted is None) == (plain.allocate_slots(ours, new, num_hit, pages) is None)
            if granted is not None:
                theirs.num_computed_tokens = ours.num_computed_tokens = len(prompt)
                theirs._all_token_ids.append(1)
                ours.append(1)
                running.append((theirs, ours))
        manager.ours.check()
    assert taken
    assert refused or num_blocks > 14


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"num_hash_lookahead_tokens": 1}, "num_hash_lookahead_tokens=1"),
        ({"dcp_world_size": 2}, "dcp_world_size=2"),
        ({"metrics_collector": object()}, "metrics_collector="),
    ],
)
def test_under_vllm_what_is_left_out_is_refused_by_name(vllm_glue: Any, asked: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}.*left out"):
        vllm_manager(vllm_glue, 9, **asked)
    manager = vllm_manager(vllm_glue, 9, dcp_world_size=1, metrics_collector=None)
    with pytest.raises(ValueError, match=r"num_external_computed_tokens=4.*left out"):
        manager.allocate_slots(VllmRequest("a", [1, 2]), 2, num_external_computed_tokens=4)
    with pytest.raises(AttributeError, match=r"no pop_blocks_for_free.*left out"):
        _ = manager.pop_blocks_for_free
