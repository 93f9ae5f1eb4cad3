"""MAN-12, SEC-3: events as MessagePack, and those who follow a publisher through whatever happens on the way."""

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvproof import fast, spec
from kvproof.spec import CacheCleared, CacheEvent, CacheSalt, LoraAdapter, MultimodalItem, PageRemoved, PageStored

msgspec = pytest.importorskip("msgspec", reason="MessagePack needs the extra `events`")

GROUPS = [
    spec.CacheGroupSpec(spec.FullAttentionSpec(4, 1, 8, "float32")),
    spec.CacheGroupSpec(spec.SlidingWindowSpec(4, 1, 8, "float32", sliding_window=6)),
]
KEYS = (LoraAdapter("a"), CacheSalt("s"), MultimodalItem(b"m", 3, 9))
STORED = PageStored(1, 7, b"h" * 32, b"p" * 32, (1, 2, -3, 4), KEYS)
EVERY: list[CacheEvent] = [CacheCleared(), STORED, PageRemoved(1, 7, b"h" * 32), STORED._replace(extra_keys=None)]


def managers_events(seed: int, count: int) -> list[list[CacheEvent]]:
    """The events of a small manager, step by step: pages are cached, evicted, cached twice, and all forgotten."""
    draw = random.Random(seed)
    manager = fast.CacheManager(9, GROUPS, 32, enable_events=True, hash_seed=b"0")
    steps = []
    for number in range(count):
        request = fast.Request(str(number), [draw.randrange(2) for _ in range(draw.randrange(1, 14))])
        pages, hit = manager.get_computed_pages(request)
        if manager.allocate_slots(request, request.num_tokens - hit, hit, pages) is not None:
            manager.free(request)
        if draw.random() < 0.1:
            manager.reset_prefix_cache()
        steps.append(manager.take_events())
    return steps


def cached(follower: Any) -> dict[Any, list[int]]:
    return {key: list(pages) for key, pages in follower.cached_page_hash_to_page.items()}


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_events_come_back_as_they_were(groups: Any) -> None:
    assert fast.events_from_msgpack(spec.events_to_msgpack(EVERY, groups)) == EVERY


def test_the_fields_are_those_of_vllm() -> None:
    _, (stored, removed), rank, _ = msgspec.msgpack.decode(
        fast.events_to_msgpack([STORED, EVERY[2]], GROUPS, rank=2, medium="CPU")
    )
    fields = {
        "type": "BlockStored",
        "block_hashes": [STORED.page_hash],
        "parent_block_hash": STORED.parent_hash,
        "token_ids": [1, 2, -3, 4],
        "block_size": 4,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": "a",
        "extra_keys": [["a", CacheSalt("s").fingerprint.hex(), [b"m".hex(), 3]]],
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 6,
    }
    assert rank == 2
    assert fields.items() <= {**stored, "extra_keys": stored["extra_keys"]}.items()
    assert {"type": "BlockRemoved", "block_hashes": [STORED.page_hash], "medium": "CPU", "group_idx": 1}.items() <= (
        removed.items()
    )


def test_vllms_own_decoder_reads_them() -> None:
    theirs = pytest.importorskip("vllm.distributed.kv_events", reason="vLLM 0.33 is not installed")
    decoder = msgspec.msgpack.Decoder(theirs.KVEventBatch)
    batch = decoder.decode(fast.events_to_msgpack(EVERY, GROUPS, timestamp=1.5, rank=2))
    cleared, stored, removed, _ = batch.events
    assert (batch.ts, batch.data_parallel_rank) == (1.5, 2)
    assert isinstance(cleared, theirs.AllBlocksCleared)
    assert isinstance(removed, theirs.BlockRemoved)
    assert (stored.block_hashes, stored.token_ids, stored.lora_name) == ([STORED.page_hash], [1, 2, -3, 4], "a")
    assert (stored.group_idx, stored.kv_cache_spec_kind, stored.kv_cache_spec_sliding_window) == (
        1,
        "sliding_window",
        6,
    )


def _with(change: Any) -> bytes:
    batch = msgspec.msgpack.decode(fast.events_to_msgpack([STORED], GROUPS))
    change(batch)
    encoded: bytes = msgspec.msgpack.encode(batch)
    return encoded


def damaged() -> Iterator[tuple[str, bytes, str]]:
    whole = fast.events_to_msgpack([STORED], GROUPS)
    yield "nothing", b"", "is no MessagePack"
    yield "cut off", whole[:-1], "is no MessagePack"
    yield "vLLM's own", _with(list.pop), "is no batch of events of the format"
    yield "a later version", _with(lambda batch: batch[3].__setitem__(1, 2)), "is of version 2 of its format"
    yield "a version of text", _with(lambda batch: batch[3].__setitem__(1, "1")), "is no batch of events of the format"
    yield "no publisher", _with(lambda batch: batch[3].pop()), "must name its publisher"
    yield "an unknown kind", _with(lambda batch: batch[1][0].update(type="BlockMoved")), "'BlockMoved', none of"
    yield "no page", _with(lambda batch: batch[1][0].pop("page_id")), "lacks page_id"
    yield "the null page", _with(lambda batch: batch[1][0].update(page_id=0)), "must be"
    yield "many digests", _with(lambda batch: batch[1][0]["block_hashes"].append(b"1")), "one digest"
    yield "no event", _with(lambda batch: batch[1].append(3)), "must be an event"
    yield "tokens of text", _with(lambda batch: batch[1][0].update(token_ids=["1"])), "token_ids"


@pytest.mark.parametrize(("message", "said"), [pytest.param(*rest, id=name) for name, *rest in damaged()])
def test_damaged_messages_are_refused_and_nothing_is_followed(message: bytes, said: str) -> None:
    subscriber = fast.EventSubscriber()
    subscriber.receive(0, fast.events_to_msgpack([STORED], GROUPS))
    before = cached(subscriber.follower)
    for package in (fast, spec):
        with pytest.raises(ValueError, match=rf"{said}.*\[SEC-3\]"):
            package.events_from_msgpack(message)
    with pytest.raises(ValueError, match=said):
        subscriber.receive(1, message)
    assert (cached(subscriber.follower), subscriber.next_sequence) == (before, 1)


def test_other_arguments_are_refused() -> None:
    wrong: Any = "text"
    with pytest.raises(TypeError, match="message must be bytes"):
        fast.events_from_msgpack(wrong)
    with pytest.raises(TypeError, match="no CacheEvent"):
        fast.events_to_msgpack([wrong])
    with pytest.raises(ValueError, match="group 1 is none of 1 kv_cache_groups"):
        fast.events_to_msgpack([STORED], GROUPS[:1])
    with pytest.raises(ValueError, match="buffer_steps=0"):
        fast.EventPublisher(buffer_steps=0)
    with pytest.raises(ValueError, match="endpoint=None"):
        fast.EventSubscriber().poll()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"timestamp": value} for value in ("1", True, float("nan"))),
        *({"rank": value} for value in (-1, True, 1.0)),
        {"medium": 1},
        {"kv_cache_groups": 1},
        {"kv_cache_groups": ["group"]},
    ],
    ids=str,
)
def test_r1_what_a_message_says_of_itself_is_read(wrong: dict[str, Any]) -> None:
    """R1: it was written as it was given, and whoever reads it got a time that is a text."""
    with pytest.raises((TypeError, ValueError), match=rf"{next(iter(wrong))}.*\[R1\]"):
        fast.events_to_msgpack([], **wrong)


@pytest.mark.parametrize("seed", range(20))
def test_a_subscriber_has_what_the_cache_held_whatever_happens_on_the_way(seed: int) -> None:
    """MAN-12: messages are lost, repeated, late, and the publisher restarts; replays are as long as it keeps them."""
    draw = random.Random(seed)
    subscriber = fast.EventSubscriber()
    held: dict[tuple[int, int], Any] = {}  # what was cached after each message of each publisher
    under_way: list[tuple[int, bytes]] = []
    publisher = None
    for number in range(draw.randrange(1, 4)):  # restarts
        publisher = fast.EventPublisher(number=number, buffer_steps=draw.choice((1, 3, 100)))
        follower = spec.CacheFollower()
        for events in managers_events(draw.random().__hash__(), 20):
            sequence, message = publisher.publish(events)
            publisher.check()
            follower.apply(events)
            held[number, sequence] = cached(follower)
            under_way += [(sequence, message)] * draw.choice((0, 1, 1, 1, 2))
            if draw.random() < 0.3:
                draw.shuffle(under_way)
            while under_way and draw.random() < 0.7:
                if not subscriber.receive(*under_way.pop(0)) and draw.random() < 0.7:
                    start = subscriber.next_sequence if subscriber.publisher == number else 0
                    for again in publisher.replay(start):
                        assert subscriber.receive(*again)
                if subscriber.publisher >= 0:
                    followed = subscriber.publisher, subscriber.next_sequence - 1
                    assert cached(subscriber.follower) == held[followed]
                    subscriber.follower.check()
    assert publisher is not None
    start = subscriber.next_sequence if subscriber.publisher == publisher.number else 0
    for again in publisher.replay(start):
        assert subscriber.receive(*again)
    assert cached(subscriber.follower) == held[subscriber.publisher, publisher.num_sent - 1]


@pytest.mark.parametrize("package", [fast, spec])
def test_a_follower_tells_all_that_is_cached(package: Any) -> None:
    """MAN-12: one who comes late has the same map, duplicates in the same order."""
    first, late = package.CacheFollower(), package.CacheFollower()
    for events in managers_events(3, 60):
        first.apply(events)
        late.apply(first.events())
        assert cached(late) == cached(first)
        assert list(late.cached_page_hash_to_page) == list(first.cached_page_hash_to_page)


def test_what_is_kept_is_bounded_and_what_was_dropped_is_told() -> None:
    publisher = fast.EventPublisher(buffer_steps=2)
    for _ in range(5):
        publisher.publish([])
    assert (publisher.num_sent, publisher.num_dropped) == (5, 3)
    assert [sequence for sequence, _ in publisher.replay(3)] == [3, 4]
    ((sequence, message),) = publisher.replay(2)
    assert (sequence, fast.events_from_msgpack(message)) == (4, [CacheCleared()])
    with pytest.raises(ValueError, match="is removed"):
        publisher.publish([EVERY[2]])
    assert publisher.num_sent == 5
    publisher.check()


def test_over_sockets(tmp_path: Any) -> None:
    """A subscriber that comes late asks for a replay, and one that comes too late for all that is cached."""
    pytest.importorskip("zmq", reason="sockets need the extra `events`")
    ends = [f"ipc://{tmp_path}/{name}" for name in ("events", "replay")]
    publisher = fast.EventPublisher(*ends, buffer_steps=3)
    truth = spec.CacheFollower()
    subscriber = None
    sent, stop = 0, threading.Event()

    def serve() -> None:
        """Another process: it publishes what happens, then goes on to say that it lives."""
        for events in [*managers_events(1, 60), *[[]] * 1000]:
            truth.apply(events)
            publisher.publish(events)
            if stop.wait(0.01):
                return

    server = threading.Thread(target=serve)
    server.start()
    try:
        while publisher.num_sent < 20:
            time.sleep(0.01)
        subscriber = fast.EventSubscriber(*ends)
        while subscriber.next_sequence < 70 and sent < 2000:
            subscriber.poll(0.5)
            sent += 1
        assert subscriber.poll(0.5)
        assert cached(subscriber.follower) == cached(truth)
    finally:
        stop.set()
        server.join()
        publisher.close()
        if subscriber is not None:
            subscriber.close()
