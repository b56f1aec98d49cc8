"""``connect`` and ``Bus``: a cluster, and the producers, consumers and administration made for it.

A bus is light: it holds addresses, options and pooled connections, no thread. It may be shared
between threads and used after a fork; producers and consumers may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker_lite.bus.reading import membership, reading
from broker_lite.client.administration.admin import Admin
from broker_lite.client.callbacks import Callback, Callbacks
from broker_lite.client.discovery import resolve
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.client.options import build, check_names
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import InvalidConfigError
from broker_lite.model import TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.consuming.consumer import Consumer
    from broker_lite.client.producing.producer import Producer
    from broker_lite.native.streams import MessageStreams


def connect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    zookeeper: str | None = None,
    client_id: str = "logbus",
    **options: Any,
) -> Bus:
    """Connect to a cluster and check that a broker answers.

    The cluster is named by ``bootstrap_servers`` ("host:port,…"), or by ``zookeeper``
    ("host:port,…/chroot"), or by LOGBUS_BOOTSTRAP_SERVERS or LOGBUS_ZOOKEEPER, or is the one that
    ``logbus up`` last started. ``options`` are defaults for its producers and consumers. Raises
    NoClusterError, NoBrokersError (after five seconds) or InvalidConfigError.
    """
    check_names(options)
    servers = resolve(bootstrap_servers, zookeeper)
    bus = Bus(servers, client_id=client_id, options=options, zookeeper=zookeeper)
    bus.admin.describe_cluster()
    return bus


class Bus:
    """One cluster. ``admin`` asks and changes it; it closes with ``close`` or ``with``."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str,
        options: Mapping[str, Any],
        zookeeper: str | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.zookeeper = zookeeper
        self.client_id = client_id
        self.admin = Admin(bootstrap_servers, client_id=client_id)
        self._options = {"client_id": client_id, **options}

    def __repr__(self) -> str:
        return f"Bus({self.bootstrap_servers!r})"

    def producer(self, **options: Any) -> Producer:
        """A producer; nothing is asked of the cluster before its first record.

        Options are those of ``ProducerConfig``, by name or as Kafka spells them: ``acks`` ("all"),
        ``linger_ms`` (5), ``batch_bytes`` (2 MiB), ``buffer_bytes`` (64 MiB), ``compression``
        ("none", "lz4", "zstd"), ``delivery_timeout_ms`` (120,000), … ``conf/client.conf`` explains
        them. Raises InvalidConfigError.
        """
        from broker_lite.client.producing.producer import Producer

        return Producer(self.bootstrap_servers, build(ProducerConfig, options, self._options))

    def consumer(
        self,
        *topics: str | TopicPartition | Iterable[str],
        group: str | None = None,
        partitions: Iterable[TopicPartition | int] | None = None,
        coordination: str = "kafka",
        pattern: str | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        **options: Any,
    ) -> Consumer:
        """A consumer of topics, for itself or as one of a ``group``.

        A group's consumers share the partitions of their topics, or of all topics that ``pattern``
        matches as a whole, future ones too. They are members of a Kafka group, coordinated by a
        broker, beside Kafka's clients if need be; with ``coordination="zookeeper"`` they coordinate
        by themselves: see ``create_message_streams``. Where ``partitions`` are chosen, nothing is
        shared: the group is only committed to, which it takes while it has no members.

        ``on_assign``, ``on_revoke`` and ``on_lost`` are called as ``callback(consumer,
        partitions)`` when partitions come, are about to go, and went without warning
        (``Callbacks``). Options are those of ``ConsumerConfig``: ``start`` ("earliest", "latest"
        (default), "none"), ``auto_commit`` (True, every ``auto_commit_interval_ms``, 5,000),
        ``on_corrupt`` ("fail" or "skip"), ``local_reads`` (True), ``isolation_level``, …; and
        those of ``MemberConfig``: ``session_timeout_ms`` (45,000), ``max_poll_interval_ms``
        (300,000), ``group_instance_id`` for static members, ``assignors``
        ("range,cooperative-sticky"), … ``conf/client.conf`` explains them. Raises
        UnknownTopicOrPartitionError, InvalidConfigError,
        InconsistentGroupProtocolError where the group's members are native ones.
        """
        from broker_lite.client.consuming.consumer import Consumer
        from broker_lite.client.membership.consumer import MemberConsumer

        group = options.pop("group_id", group) if group is None else group
        asked = reading(topics, partitions, pattern, group)
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        kind = membership(coordination, asked, options, callbacks)
        if kind == "zookeeper":
            return self.create_message_streams(
                *asked.topics, group=group, pattern=pattern, **callbacks._asdict(), **options
            )[0]
        if kind == "kafka":
            assert group is not None
            return MemberConsumer(
                self.bootstrap_servers,
                asked.topics,
                group=group,
                pattern=pattern,
                config=build(MemberConfig, options, self._options),
                callbacks=callbacks,
            )
        return Consumer(
            self.bootstrap_servers,
            asked.topics,
            group=group,
            partitions=asked.partitions,
            config=build(ConsumerConfig, options, self._options),
        )

    def create_message_streams(
        self,
        *topics: str | TopicPartition | Iterable[str],
        streams: int = 1,
        group: str | None = None,
        pattern: str | None = None,
        zookeeper: str | None = None,
        session_timeout_ms: int = 6000,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        **options: Any,
    ) -> MessageStreams:
        """Join a native group as one consumer with several streams, each for a thread of its own.

        Such a group has no coordinator: its consumers agree through ZooKeeper, by registries and
        the range algorithm. ``pattern`` instead of topics subscribes to all topics that match it
        as a whole, future ones too. ``zookeeper``: its address; else that of ``connect``, else
        LOGBUS_ZOOKEEPER, else the one that the brokers use. A consumer that ZooKeeper does not
        hear of for ``session_timeout_ms`` loses its partitions. Raises
        InconsistentGroupProtocolError where the group's members are Kafka's,
        CoordinationUnavailableError, UnknownTopicOrPartitionError.
        """
        from broker_lite.native.streams import open_streams

        group = options.pop("group_id", group) if group is None else group
        asked = reading(topics, None, pattern, group)
        if asked.partitions is not None:
            raise InvalidConfigError("a group's members are given their partitions: name topics")
        return open_streams(
            self.admin,
            self.bootstrap_servers,
            asked.topics,
            pattern=pattern,
            streams=streams,
            group=group,
            zookeeper=zookeeper or self.zookeeper,
            session_timeout_ms=session_timeout_ms,
            config=build(ConsumerConfig, options, self._options),
            callbacks=Callbacks(on_assign, on_revoke, on_lost),
        )

    # -- the most used of ``admin``

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> str:
        """Make a topic; its id. See ``Admin.create_topic``."""
        return self.admin.create_topic(
            name, partitions, replication_factor, config, if_not_exists=if_not_exists
        )

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic and its records."""
        self.admin.delete_topic(name, if_exists=if_exists)

    def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(self.admin.cluster().topics)

    def cluster(self) -> ClusterView:
        """Brokers, controller and all topics."""
        return self.admin.cluster()

    def close(self) -> None:
        """Close the pooled connections; producers and consumers are closed by themselves."""
        self.admin.close()

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
