"""MAN-12: events over ZeroMQ: one process tells what its cache holds, others follow it, also those that come late.

The wire is vLLM's: a PUB socket with (topic, sequence number in 8 bytes, message), and a ROUTER that sends again what
came from a sequence number on, and then (empty, -1, empty). Messages are those of `events_to_msgpack`.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from kvproof.spec.declarations import CacheCleared, CacheEvent, CacheGroupSpec
from kvproof.spec.declarations.event_wire import events_to_msgpack, read_batch

from ..reading.arguments import integer, listed, refusal
from .follower import CacheFollower

__all__ = ["EventPublisher", "EventSubscriber"]

_END = (-1).to_bytes(8, "big", signed=True)


class EventPublisher:
    """Numbers a manager's events, sends them, and keeps enough to tell them again.

    It keeps the last messages and, for who comes later than these, what is cached now. It must get every event of one
    manager, from its first on. Calls come from one thread; each of them answers those who have asked for a replay.

    Args:
        endpoint: where it publishes, such as ``tcp://*:5557``; None: nothing is sent, the caller carries the messages.
        replay_endpoint: where it listens for who missed something; None: nowhere.
        kv_cache_groups: the manager's groups, whose kinds the messages have.
        topic: the topic that subscribers ask for.
        rank: the data-parallel rank of the manager.
        buffer_steps: the most messages that are kept, at least 1.
        number: the number of this publisher, larger than that of any before it, as a restarted one begins at 0 again;
            None: the time in nanoseconds.

    Attributes:
        number: see the argument.
        num_sent: the number of messages so far, which is the next one's sequence number.
        num_dropped: the number of the oldest messages that are not kept any more.

    Raises:
        ImportError: msgspec, or pyzmq where there is an endpoint, is not installed.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        replay_endpoint: str | None = None,
        *,
        kv_cache_groups: Sequence[CacheGroupSpec] = (),
        topic: str = "",
        rank: int | None = None,
        buffer_steps: int = 10_000,
        number: int | None = None,
    ) -> None:
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=integer("buffer_steps", buffer_steps, minimum=1))
        self._groups, self._rank = tuple(kv_cache_groups), rank
        self.number = time.time_ns() if number is None else integer("number", number)
        self._topic = topic.encode()
        self._cached = CacheFollower()
        self.num_sent = self.num_dropped = 0
        self._message([])  # refuses what could not be written
        self._publishes = None if endpoint is None else _bound("PUB", endpoint)
        self._answers = None if replay_endpoint is None else _bound("ROUTER", replay_endpoint)

    def publish(self, events: Iterable[CacheEvent]) -> tuple[int, bytes]:
        """Sends events, as `take_events` returned them; none are a sign of life. O(their size).

        Returns:
            The message and its sequence number.

        Raises:
            TypeError: an element is no event.
            ValueError: the events contradict those before them; nothing is sent then.
        """
        given = listed("events", events)
        message = self._message(given)
        self._cached.apply(given)
        sequence = self.num_sent
        self.num_sent += 1
        self.num_dropped += len(self._kept) == self._kept.maxlen
        self._kept.append((sequence, message))
        if self._publishes is not None:
            self._publishes.send_multipart((self._topic, sequence.to_bytes(8, "big"), message))
        self._answer()
        return sequence, message

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        """The messages from a sequence number on; where those are not kept any more, all that is cached in their place.

        The message in their place has the number of the last one and begins with a `CacheCleared`.
        """
        first = integer("start", start)
        if first >= self.num_dropped:
            return [(sequence, message) for sequence, message in self._kept if sequence >= first]
        return [(self.num_sent - 1, self._message(self._cached.events()))]

    def _message(self, events: Sequence[CacheEvent]) -> bytes:
        """Events as this publisher tells them."""
        return events_to_msgpack(events, self._groups, timestamp=time.time(), rank=self._rank, publisher=self.number)

    def _answer(self) -> None:
        """Sends again what subscribers have asked for since the last call."""
        while self._answers is not None and self._answers.poll(0):
            asked = self._answers.recv_multipart()
            if len(asked) != 3 or len(asked[2]) != 8:
                continue  # not from one of ours: there is nothing to say to it
            client, _, start = asked
            for sequence, message in self.replay(min(int.from_bytes(start, "big"), self.num_sent)):
                self._answers.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), message))
            self._answers.send_multipart((client, b"", b"", _END, b""))

    def close(self) -> None:
        """Closes the sockets."""
        for socket in (self._publishes, self._answers):
            if socket is not None:
                socket.close(linger=0)

    def check(self) -> None:
        """Verifies what is kept; O(cached pages).

        Raises:
            AssertionError: messages are missing, or out of order.
        """
        numbers = [sequence for sequence, _ in self._kept]
        assert numbers == list(range(self.num_dropped, self.num_sent)), f"MAN-12: {numbers}, {self.num_dropped} dropped"
        self._cached.check()


class EventSubscriber:
    """Follows a publisher's cache through messages that may be lost, repeated, out of order, or of one that restarted.

    Args:
        endpoint: where the publisher publishes, such as ``tcp://host:5557``; None: the caller brings the messages.
        replay_endpoint: where it answers who missed something; None: nowhere.
        topic: the publisher's topic.

    Attributes:
        follower: what is known of the cache: at each time exactly what it held after the last message followed.
        next_sequence: the sequence number of the message that is awaited.
        publisher: the number of the publisher that is followed; -1 before the first message.
    """

    def __init__(self, endpoint: str | None = None, replay_endpoint: str | None = None, *, topic: str = "") -> None:
        self.follower = CacheFollower()
        self.next_sequence = 0
        self.publisher = -1
        self._replay_endpoint = replay_endpoint
        self._listens = None if endpoint is None else _connected("SUB", endpoint)
        if self._listens is not None:
            self._listens.subscribe(topic)

    def receive(self, sequence: int, message: bytes) -> bool:
        """Follows a message, unless ones before it are missing. Events that were followed already are skipped.

        Returns:
            False if a replay is needed, from ``next_sequence`` on (from 0, where the publisher is a new one).

        Raises:
            ImportError: msgspec is not installed.
            TypeError: the message is not bytes.
            ValueError: it is damaged or of another version, or contradicts those before it; nothing changes then.
        """
        number = integer("sequence", sequence)
        batch = read_batch(message)
        if batch.publisher < self.publisher or (batch.publisher == self.publisher and number < self.next_sequence):
            return True
        begins = bool(batch.events) and isinstance(batch.events[0], CacheCleared)
        is_new = batch.publisher > self.publisher
        if not begins and number != (0 if is_new else self.next_sequence):
            return False
        if is_new:
            follower = CacheFollower()
            follower.apply(batch.events)
            self.follower = follower
        else:
            self.follower.apply(batch.events)
        self.publisher, self.next_sequence = batch.publisher, number + 1
        return True

    def poll(self, timeout: float = 0.0) -> bool:
        """Follows the messages that have come, and asks for those that are missing.

        Args:
            timeout: the most seconds to wait for the first one, and for an answer.

        Returns:
            True if nothing is known to be missing.

        Raises:
            ValueError: there is no endpoint, or as `receive`.
        """
        if self._listens is None:
            raise refusal(ValueError, "R1", "endpoint=None: messages are brought to `receive`")
        is_whole = True
        wait = timeout
        while self._listens.poll(1000 * wait):
            _, sequence, message = self._listens.recv_multipart()
            wait = 0.0
            number = int.from_bytes(sequence, "big")
            is_whole = self.receive(number, message) or self._ask(read_batch(message).publisher, timeout)
        return is_whole

    def _ask(self, publisher: int, timeout: float) -> bool:
        """Asks for the messages that are missing; whether they came."""
        if self._replay_endpoint is None:
            return False
        socket = _connected("DEALER", self._replay_endpoint)
        try:
            start = self.next_sequence if publisher == self.publisher else 0
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            while socket.poll(1000 * timeout):
                _, _, sequence, message = socket.recv_multipart()
                if sequence == _END:
                    return True
                self.receive(int.from_bytes(sequence, "big"), message)
        finally:
            socket.close(linger=0)
        return False

    def close(self) -> None:
        """Closes the socket."""
        if self._listens is not None:
            self._listens.close(linger=0)


def _zmq() -> ModuleType:
    """ZeroMQ: not needed by anything else, so an extra."""
    try:
        import zmq
    except ImportError:
        raise ImportError("an endpoint needs pyzmq: pip install 'kvproof[events]'") from None
    module: ModuleType = zmq
    return module


def _bound(kind: str, endpoint: str) -> Any:
    """A socket of a kind that listens."""
    socket = _zmq().Context.instance().socket(getattr(_zmq(), kind))
    socket.bind(endpoint)
    return socket


def _connected(kind: str, endpoint: str) -> Any:
    """A socket of a kind that is connected."""
    socket = _zmq().Context.instance().socket(getattr(_zmq(), kind))
    socket.connect(endpoint)
    return socket
