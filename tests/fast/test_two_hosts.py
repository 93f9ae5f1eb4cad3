"""CACHE-5, POOL-12, TAB-5, MAN-12: two processes on one mesh serve as one device does, and know each other's pages."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kvproof import fast, spec

from .two_hosts import GROUPS, STEPS, Shard, cached_map, serve

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 120.0


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two hosts made of it, each a process with two devices; they tell each other of their events by pipes."""
    folder = tmp_path_factory.mktemp("hosts")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pipes = [os.pipe(), os.pipe()]
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"}
    running = []
    try:
        for number in range(2):
            ends = pipes[number][1], pipes[1 - number][0]
            arguments = [str(value) for value in (port, number, *ends, folder / f"{number}.json")]
            command = [sys.executable, "-W", "error", "-m", "tests.fast.two_hosts", *arguments]
            running.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=env,
                    pass_fds=ends,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        for end in (*pipes[0], *pipes[1]):
            os.close(end)
        told = [host.communicate(timeout=MOST_SECONDS)[0] for host in running]
    finally:
        for host in running:
            host.kill()
            host.communicate()
    assert [host.returncode for host in running] == [0, 0], "\n".join(told)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]


def _alone(number: int) -> tuple[Shard, fast.RaggedPagesCache]:
    """A shard served in one process, on one device."""
    shard = Shard(number)
    return shard, serve(shard, None, 1)


def test_two_hosts_serve_as_one_device_does(hosts: Any) -> None:
    """CACHE-5, POOL-12, TAB-5: tokens, pages, and how often tables are sent, for both ways of splitting a cache."""
    alone = [_alone(number) for number in range(2)]
    for host, (shard, _) in zip(hosts, alone, strict=True):
        wanted = {request.request_id: request.all_token_ids.tolist() for request in shard.requests}
        assert host["pages"]["tokens"] == wanted
        assert host["pages"]["commits"] == shard.num_commits > STEPS  # once a table and step, however many devices
        first = {request.request_id: request.all_token_ids.tolist() for request in alone[0][0].requests}
        assert host["heads"]["tokens"] == first
        assert host["heads"]["commits"] == alone[0][0].num_commits
    for way, caches in (("pages", [cache for _, cache in alone]), ("heads", [alone[0][1]])):
        assert hosts[0][way]["cache"] == hosts[1][way]["cache"]
        split = spec.RaggedPagesCache.from_json(json.dumps(hosts[0][way]["cache"]))
        for layer, view in enumerate(split.views):
            for name in ("key_pages", "value_pages"):
                pages = np.concatenate([getattr(cache.views[layer], name) for cache in caches])
                np.testing.assert_allclose(np.asarray(getattr(view, name)), pages, rtol=0, atol=1e-5)


def test_a_cache_of_two_hosts_is_read_onto_a_mesh_of_one(hosts: Any) -> None:
    """SEC-3, CACHE-5: every host writes the whole of it."""
    document = hosts[1]["pages"]["cache"]
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), devices=jax.devices()[:4])
    assert fast.RaggedPagesCache.from_dict(document, mesh).to_dict() == document


def test_what_a_host_hears_is_the_other_hosts_index(hosts: Any) -> None:
    """MAN-12: after every step, with duplicates, evictions and both groups; by both packages' followers."""
    for host in hosts:
        events: list[Any] = []
        followers: list[Any] = [spec.CacheFollower(), fast.CacheFollower()]
        for told, theirs in host["heard"]:
            text = json.dumps(told)
            assert spec.events_from_json(text) == fast.events_from_json(text)
            assert spec.events_to_json(fast.events_from_json(text)) == text
            events += fast.events_from_json(text)
            for follower in followers:
                follower.apply(fast.events_from_json(text))
                assert cached_map(follower.cached_page_hash_to_page) == theirs
        kinds = [type(event).__name__ for event in events]
        assert kinds.count("PageStored") > 20
        assert kinds.count("PageRemoved") > 5
        assert {event.group_id for event in events} == set(range(len(GROUPS)))
        assert any(len(pages) > 1 for _, theirs in host["heard"] for _, _, pages in theirs)
        assert len(host["heard"]) == STEPS


def test_a_router_sends_a_prompt_where_its_prefix_is(hosts: Any) -> None:
    """MAN-12, HASH-1: it needs the seed of the keys and the followers, and no pool."""
    followers = []
    for host in reversed(hosts):  # what the second heard is the first's
        follower = fast.CacheFollower()
        for told, _ in host["heard"]:
            follower.apply(fast.events_from_json(json.dumps(told)))
        followers.append(follower)
    pool = fast.CacheManager(3, GROUPS, 8, hash_seed=b"two hosts").page_pool
    for number in range(2):
        request = Shard(number).requests[-1]
        keys = fast.hash_request_tokens(
            pool.hash_function, GROUPS[0].kv_cache_spec.page_size, request, none_hash=pool.none_hash
        )
        found = [follower.num_cached_pages(keys, [0]) for follower in followers]
        assert found[number] > found[1 - number] == 0


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"format": 1, "kind": "CacheEvents"}', '{"format": 2, "kind": "CacheEvents", "events": []}'),
        '{"format": 1, "kind": "CacheEvents", "events": {}}',
        *(
            f'{{"format": 1, "kind": "CacheEvents", "events": [{event}]}}'
            for event in (
                "{}",
                '{"kind": "Request"}',
                '{"kind": "CacheCleared", "more": 1}',
                '{"kind": "PageRemoved", "group_id": 0, "page_id": 0, "page_hash": "00"}',
                '{"kind": "PageRemoved", "group_id": true, "page_id": 1, "page_hash": "00"}',
                '{"kind": "PageRemoved", "group_id": 0, "page_id": 1, "page_hash": "salt"}',
            )
        ),
    ],
)
def test_events_that_are_damaged_are_refused(package: Any, text: str) -> None:
    """SEC-3, R1."""
    with pytest.raises((TypeError, ValueError), match=r"\[(SEC-3|MAN-14|R1)\]"):
        package.events_from_json(text)
    for wrong in (text.encode(), None):
        with pytest.raises(TypeError, match=r"\[R1\]"):
            package.events_from_json(wrong)
