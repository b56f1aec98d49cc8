"""The entry points of native groups, which ZooKeeper coordinates: ``open_streams`` joins a group as
a blocking consumer with several streams, ``joining_on_loop`` as an asyncio consumer.

``Bus`` loads this module only for native groups, because it imports asyncio and kazoo."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from broker_lite.client.administration.admin import Admin
from broker_lite.client.callbacks import Callbacks
from broker_lite.client.closing import ClosedByWith
from broker_lite.client.consuming.consumer import Consumer
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.discovery import ENV_ZOOKEEPER
from broker_lite.client.options import check_pattern
from broker_lite.config import ConsumerConfig
from broker_lite.errors import InvalidConfigError, InvalidGroupIdError, LogbusError, NoClusterError
from broker_lite.metadata import znodes
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.metadata.zookeeper.connection import split_address
from broker_lite.model import TopicPartition
from broker_lite.native.membership import NativeMembership
from broker_lite.native.session import GroupSession, ThreadSession, consumer_name

S = TypeVar("S", bound=GroupSession)

SESSION_TIMEOUT_MIN_MS, SESSION_TIMEOUT_MAX_MS = 1000, 2**31 - 1
"""Limits of the option ``session_timeout_ms``. ZooKeeper's protocol has 32 bits for it, with a
sign."""
STREAMS_MAX = 256
"""Maximum number of streams of a consumer; one thread reads each."""
REGISTRATION_BYTES_MAX = 512 << 10
"""Maximum bytes of a consumer's registration in ZooKeeper. ZooKeeper closes the connection if a
write exceeds 1 MB (jute.maxbuffer)."""
READERS_TIMEOUT_S = 1.0
"""Seconds for which ``close`` waits for threads that are still processing records of a stream."""


class MessageStreams(ClosedByWith):
    """The streams of one member of a group that ZooKeeper coordinates. Each stream is a
    ``Consumer`` object for one thread.

    Every partition that the member owns belongs to one stream. ``close``, or the end of a
    ``with`` block, leaves the group. A thread that asks a stream for records afterwards gets
    ClosedError."""

    def __init__(
        self,
        session: ThreadSession,
        streams: Sequence[Consumer],
        memberships: Sequence[NativeMembership],
    ) -> None:
        self._session = session
        self._streams = tuple(streams)
        self._memberships = tuple(memberships)
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, index: int) -> Consumer:
        return self._streams[index]

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._streams)

    @property
    def is_open(self) -> bool:
        """Whether at least one stream is open."""
        return any(stream.is_open for stream in self._streams)

    def assignment(self) -> list[list[TopicPartition]]:
        """Return the partitions of each stream, in the order of the streams."""
        return [stream.assignment() for stream in self._streams]

    def close(self) -> None:
        """Make the last automatic commit of each stream, and leave the group.

        If other threads are still processing records, wait one second for them to ask for more. If
        a thread takes longer, the next owners of its partitions receive again the records that it
        was processing. The records that the calling thread itself has received count as processed,
        unless it is handling an exception."""
        self._exit(is_done=sys.exc_info()[0] is None)

    def _exit(self, *, is_done: bool) -> None:
        if self._is_closing:
            return  # A callback has called ``close`` again.
        self._is_closing = True
        problems: list[LogbusError] = []
        for membership in self._memberships:
            membership.halt()
        deadline = time.monotonic() + READERS_TIMEOUT_S
        for stream, membership in zip(self._streams, self._memberships):
            if not membership.await_reader(deadline):
                stream.run(stream.core.abandon())
                continue
            try:
                # If another thread reads the stream, it may still be processing the last records.
                # They count as processed only once that thread asks for more.
                is_processed = is_done and membership.is_read_here
                stream.run(stream.core.finish(is_done=is_processed))
            except LogbusError as error:
                problems.append(error)
        self._session.leave()
        for stream in self._streams:
            stream.close()
        if problems and is_done:
            raise problems[0]


class NativeOptions(NamedTuple):
    """The arguments of a consumer in a native group (without a coordinator): see
    ``Bus.create_message_streams``."""

    topics: Sequence[str]
    pattern: str | None
    group: str | None
    zookeeper: str | None
    session_timeout_ms: int
    config: ConsumerConfig
    streams: int = 1


def open_streams(
    admin: Admin, bootstrap_servers: str, options: NativeOptions, callbacks: Callbacks
) -> MessageStreams:
    """Join a group that ZooKeeper coordinates, as one blocking consumer, and return its streams.
    Raises the errors of ``Bus.create_message_streams``."""
    session = _session(ThreadSession, admin, options)
    memberships: list[NativeMembership] = []

    def joining(reader: ReaderCore) -> NativeMembership:
        topics = session.subscription.topics
        memberships.append(NativeMembership(reader, session=session, topics=topics))
        return memberships[-1]

    consumers: list[Consumer] = []
    try:
        for _ in range(options.streams):
            consumers.append(
                Consumer(
                    bootstrap_servers,
                    group=options.group,
                    config=options.config,
                    callbacks=callbacks,
                    joining=joining,
                )
            )
        session.start()
    except BaseException:
        for stream in consumers:
            stream.stop()
        raise
    return MessageStreams(session, consumers, memberships)


def joining_on_loop(admin: Admin, options: NativeOptions) -> Joining:
    """Return a function that creates an asyncio consumer's membership in a native group (without a
    coordinator). The consumer has one stream, and belongs to the running event loop."""
    session = _session(GroupSession, admin, options)
    return partial(NativeMembership, session=session, topics=session.subscription.topics)


def _session(kind: type[S], admin: Admin, options: NativeOptions) -> S:
    subscription = subscribe(options)
    assert options.group is not None
    name = consumer_name(options.config.client_id, subscription.host)
    find_address = partial(zookeeper_address, admin, options.zookeeper)
    return kind(find_address, options.group, name, subscription, options.session_timeout_ms)


def subscribe(options: NativeOptions) -> NativeSubscription:
    """Check a consumer's options, and return its registration for ZooKeeper: topics or pattern, and
    number of streams. Raises InvalidConfigError or InvalidGroupIdError."""
    topics, pattern, group, _, session_timeout_ms, config, streams = options
    if group is None:
        raise InvalidGroupIdError("coordination='zookeeper' is for groups; give group='…'")
    znodes.group_path(group)
    names = tuple(dict.fromkeys(topics))
    if bool(names) == (pattern is not None):
        raise InvalidConfigError(
            f"topics={list(names)!r} and pattern={pattern!r}: give either topics or a pattern"
        )
    if pattern is not None:
        check_pattern(pattern)
    if not 1 <= streams <= STREAMS_MAX:
        raise InvalidConfigError(f"streams={streams}: give 1 to {STREAMS_MAX}")
    if not SESSION_TIMEOUT_MIN_MS <= session_timeout_ms <= SESSION_TIMEOUT_MAX_MS:
        raise InvalidConfigError(
            f"session_timeout_ms={session_timeout_ms}: give {SESSION_TIMEOUT_MIN_MS} to "
            f"{SESSION_TIMEOUT_MAX_MS}"
        )
    subscription = NativeSubscription(
        names, pattern, streams, socket.gethostname(), config.client_id
    )
    size = len(znodes.encode_subscription(subscription))
    if size > REGISTRATION_BYTES_MAX:
        raise InvalidConfigError(
            f"{len(names)} topics, pattern={(pattern or '')[:40]!r}: the registration would have "
            f"{size} bytes, more than {REGISTRATION_BYTES_MAX}; give a pattern in place of names, "
            "or a shorter pattern"
        )
    return subscription


def zookeeper_address(admin: Admin, given: str | None) -> str:
    """Return ZooKeeper's address: ``given``, else LOGBUS_ZOOKEEPER, else the address that a broker
    reports. Raises NoClusterError if all three are missing."""
    address = given or os.environ.get(ENV_ZOOKEEPER) or _as_brokers_have_it(admin)
    if not address:
        raise NoClusterError(
            "coordination='zookeeper' needs ZooKeeper's address, and the brokers do not report it: "
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
