"""vLLM's own subscribers read the events of a cache of ours: that of its tests, and the one that it has as an example.

By hand, and not in CI: it needs vLLM 0.33.0 and its sources (CONFORMANCE.md says how to get both, and what its tests
import), ``pip install msgspec pyzmq``, and the ports 5557 and 5558 of this machine, which the example names. Then::

    python tests/demonstrations/vllm_events.py CHECKOUT      # half a minute

Without a GPU set ``VLLM_TARGET_DEVICE=cpu``, else vLLM finds no device.

A small manager caches, evicts, caches twice and forgets; what it tells goes out by `EventPublisher`, once live, and
again for who asks: from a message that is kept, and from one that is not. Each reader counts what is cached by what it
was told, and that is held against the manager. The exit status is 0 if all agree.
"""

import argparse
import importlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvproof import fast, spec

_PUBLISHED, _REPLAYED, _TOPIC = "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "kv-events"
_STEPS, _KEPT = 300, 100
_EXAMPLE = "examples/features/kv_events/kv_events_subscriber.py"


def main() -> None:
    """Publishes to both, and compares."""
    parser = argparse.ArgumentParser(description="Has vLLM's own subscribers read our events.")
    parser.add_argument("checkout", type=Path, help="where vLLM's sources are; its package is imported from elsewhere")
    checkout = parser.parse_args().checkout.resolve()
    place = tempfile.mkdtemp()  # beside the tests lies vLLM's own package, which is not built
    (Path(place) / "tests").symlink_to(checkout / "tests")
    sys.path.insert(0, place)
    theirs: Any = importlib.import_module("vllm.distributed.kv_events")
    reader: Any = importlib.import_module("tests.distributed.conftest").MockSubscriber

    groups = [
        fast.CacheGroupSpec(fast.FullAttentionSpec(4, 1, 8, "float32")),
        fast.CacheGroupSpec(fast.SlidingWindowSpec(4, 1, 8, "float32", sliding_window=6)),
    ]
    manager = fast.CacheManager(9, groups, 32, enable_events=True)
    publisher = fast.EventPublisher(_PUBLISHED, _REPLAYED, kv_cache_groups=groups, topic=_TOPIC, buffer_steps=_KEPT)
    subscriber = reader(_PUBLISHED, _REPLAYED, _TOPIC, theirs.KVEventBatch)
    said = Path(place) / "said"
    with said.open("w") as file:
        example = subprocess.Popen([sys.executable, "-u", checkout / _EXAMPLE], stdout=file)
    _wait(said, "Listening", 1)
    time.sleep(2)  # until both are connected: what is published before is for nobody

    draw, follower, sent = random.Random(1), fast.CacheFollower(), 0
    for number in range(_STEPS):
        _step(manager, draw, str(number))
        events = manager.take_events()
        follower.apply(events)
        sent += len(events)
        publisher.publish(events)
        time.sleep(0.002)
    wanted = Counter(
        (event.group_id, event.page_hash) for event in follower.events() if isinstance(event, spec.PageStored)
    )

    live = [subscriber.receive_one() for _ in range(_STEPS)]
    agreed = [_agree(f"{len(live)} messages live, {sent} events", live, wanted)]
    start = _STEPS - _KEPT + 10
    subscriber.request_replay(start)
    again = _answered(publisher, subscriber)
    agreed.append(_agree(f"live to {start}, then {len(again)} replayed", [*live[:start], *again], wanted))
    subscriber.request_replay(0)
    told_again = _answered(publisher, subscriber)
    agreed.append(
        _agree(f"{len(told_again)} in place of {publisher.num_dropped} that are not kept", told_again, wanted)
    )
    subscriber.close()

    _wait(said, "Received event batch", publisher.num_sent)
    example.send_signal(signal.SIGINT)
    example.wait(60)
    publisher.close()
    told = said.read_text()
    counted = [told.count(f"\n  - {name}(") for name in ("BlockStored", "BlockRemoved", "AllBlocksCleared")]
    errors = told.count("Error decoding")
    print(f"its example: {told.count('Received event batch')} batches, {sum(counted)} events, {errors} errors")
    agreed += [sum(counted) == sent, errors == 0]
    sys.exit(not all(agreed))


def _wait(said: Path, what: str, count: int) -> None:
    """Waits until a text was printed a number of times, a minute at most."""
    end = time.monotonic() + 60
    while said.read_text().count(what) < count and time.monotonic() < end:
        time.sleep(0.1)


def _step(manager: Any, draw: random.Random, name: str) -> None:
    """A request of few tokens is computed and goes; at times the cache is emptied."""
    request = fast.Request(name, [draw.randrange(2) for _ in range(draw.randrange(1, 14))])
    pages, hit = manager.get_computed_pages(request)
    if manager.allocate_slots(request, request.num_tokens - hit, hit, pages) is not None:
        manager.free(request)
    if draw.random() < 0.02:
        manager.reset_prefix_cache()


def _answered(publisher: Any, subscriber: Any) -> list[tuple[int, Any]]:
    """What comes to who asked: the publisher answers when it next publishes."""
    time.sleep(1)
    publisher.publish([])
    replayed: list[tuple[int, Any]] = subscriber.receive_replay()
    return replayed


def _agree(what: str, messages: Iterable[tuple[int, Any] | None], wanted: Counter[Any]) -> bool:
    """Whether what the messages tell is what is cached: for each group and digest the number of pages."""
    held: Counter[Any] = Counter()
    for message in messages:
        for event in [] if message is None else message[1].events:
            if type(event).__name__ == "AllBlocksCleared":
                held.clear()
                continue
            change = 1 if type(event).__name__ == "BlockStored" else -1
            held.update({(event.group_idx, digest): change for digest in event.block_hashes})
    is_same = +held == wanted
    print(f"{what}: {sum((+held).values())} pages, {'as' if is_same else 'NOT as'} the manager has them cached")
    return is_same


if __name__ == "__main__":
    main()
