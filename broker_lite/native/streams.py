"""The way into a native group: addresses, options, and the streams of one consumer.

Loaded by ``Bus.consumer`` and ``Bus.create_message_streams`` only where native groups are asked
for, since it brings asyncio and kazoo along.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from broker_lite.client.administration.admin import Admin
from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.client.discovery import ENV_ZOOKEEPER
from broker_lite.client.options import check_pattern
from broker_lite.config import ConsumerConfig
from broker_lite.errors import InvalidConfigError, InvalidGroupIdError, LogbusError, NoClusterError
from broker_lite.metadata import znodes
from broker_lite.metadata.znodes import Subscription
from broker_lite.metadata.zookeeper import split_address
from broker_lite.model import TopicPartition
from broker_lite.native.consumer import NativeConsumer
from broker_lite.native.session import GroupSession, consumer_name

SESSION_TIMEOUT_MIN_MS = 1000
STREAMS_MAX = 256
REGISTRATION_BYTES_MAX = 512 << 10
"""ZooKeeper takes 1 MB at once (jute.maxbuffer) and ends the connection of who sends more."""
READERS_TIMEOUT_S = 1.0
"""How long closing waits for those that are still at a record."""


class MessageStreams:
    """The streams of one consumer, each to be read by a thread of its own: every partition that
    the consumer owns belongs to one of them. Closing, which ``with`` does, leaves the group; a
    thread that asks for more after that gets ClosedError."""

    def __init__(self, session: GroupSession, streams: Sequence[NativeConsumer]) -> None:
        self._session = session
        self._streams = tuple(streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, index: int) -> NativeConsumer:
        return self._streams[index]

    def __iter__(self) -> Iterator[NativeConsumer]:
        return iter(self._streams)

    def assignment(self) -> list[list[TopicPartition]]:
        """The partitions that each stream reads."""
        return [stream.assignment() for stream in self._streams]

    def close(self) -> None:
        """Commit what is done with, where the streams commit by themselves, and leave.

        What a thread is still at when it does not ask for more within a second comes again, to
        whoever is next, and so does all that this stream has not committed by then. Of a stream
        that was read by the calling thread everything handed out counts as done with, but not
        while an exception is being handled.
        """
        self._close(is_done=sys.exc_info()[0] is None)

    def _close(self, *, is_done: bool) -> None:
        problems: list[LogbusError] = []
        for stream in self._streams:
            stream.halt()
        deadline = time.monotonic() + READERS_TIMEOUT_S
        for stream in self._streams:
            if not stream.await_reader(deadline):
                stream.abandon()
                continue
            try:
                # Whether another thread's work succeeded is known only if that asked for more.
                stream.finish(is_done=is_done and stream.is_read_here)
            except LogbusError as error:
                problems.append(error)
        self._session.close()
        for stream in self._streams:
            stream.close()
        if problems and is_done:
            raise problems[0]

    def __enter__(self) -> MessageStreams:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(is_done=kind is None)


def open_streams(
    admin: Admin,
    bootstrap_servers: str,
    topics: Sequence[str],
    *,
    pattern: str | None,
    streams: int,
    group: str | None,
    zookeeper: str | None,
    session_timeout_ms: int,
    config: ConsumerConfig,
    callbacks: Callbacks = NO_CALLBACKS,
) -> MessageStreams:
    """Join a native group with so many streams."""
    subscription = subscribe(
        topics,
        pattern,
        streams=streams,
        group=group,
        session_timeout_ms=session_timeout_ms,
        config=config,
    )
    assert group is not None
    address = zookeeper_address(admin, zookeeper)
    name = consumer_name(config.client_id, subscription.host)
    session = GroupSession(address, group, name, subscription, session_timeout_ms)
    made: list[NativeConsumer] = []
    try:
        for _ in range(streams):
            made.append(
                NativeConsumer(
                    bootstrap_servers,
                    session,
                    topics=subscription.topics,
                    config=config,
                    callbacks=callbacks,
                )
            )
        session.start()
    except BaseException:
        for stream in made:
            stream.stop()
        raise
    return MessageStreams(session, made)


def subscribe(
    topics: Sequence[str],
    pattern: str | None,
    *,
    streams: int,
    group: str | None,
    session_timeout_ms: int,
    config: ConsumerConfig,
) -> Subscription:
    """What is registered; raises InvalidConfigError, InvalidGroupIdError for what cannot be."""
    if group is None:
        raise InvalidGroupIdError("coordination='zookeeper' is for groups; give group='…'")
    znodes.group_path(group)
    names = tuple(dict.fromkeys(topics))
    if bool(names) == (pattern is not None):
        raise InvalidConfigError(
            f"topics={list(names)!r} and pattern={pattern!r}: give topics, or a pattern"
        )
    if pattern is not None:
        check_pattern(pattern)
    if not 1 <= streams <= STREAMS_MAX:
        raise InvalidConfigError(f"streams={streams}: give 1 to {STREAMS_MAX}")
    if session_timeout_ms < SESSION_TIMEOUT_MIN_MS:
        raise InvalidConfigError(
            f"session_timeout_ms={session_timeout_ms}: give at least {SESSION_TIMEOUT_MIN_MS}"
        )
    made = Subscription(names, pattern, streams, socket.gethostname(), config.client_id)
    size = len(znodes.encode_subscription(made))
    if size > REGISTRATION_BYTES_MAX:
        raise InvalidConfigError(
            f"topics={len(names)}, pattern={(pattern or '')[:40]!r}: they take {size} bytes in the "
            f"group's registry; give at most {REGISTRATION_BYTES_MAX}: a pattern instead of names, "
            "or a shorter one"
        )
    return made


def zookeeper_address(
    admin: Admin, given: str | None, environment: Mapping[str, str] | None = None
) -> str:
    """ZooKeeper's address: as given, else LOGBUS_ZOOKEEPER, else as a broker has it.

    Raises NoClusterError where there is none.
    """
    env = os.environ if environment is None else environment
    address = given or env.get(ENV_ZOOKEEPER) or _as_brokers_have_it(admin)
    if not address:
        raise NoClusterError(
            "coordination='zookeeper' needs ZooKeeper's address, and the brokers do not tell it: "
            f"give zookeeper='host:port/chroot' or set {ENV_ZOOKEEPER}"
        )
    split_address(address)
    return address


def _as_brokers_have_it(admin: Admin) -> str | None:
    try:
        brokers = sorted(admin.describe_cluster().brokers)
        for settings in admin.describe_configs(brokers=brokers[:1]).values():
            return settings["zookeeper.connect"].value
    except (LogbusError, KeyError):
        pass
    return None
