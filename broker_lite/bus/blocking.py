"""The blocking client of one cluster: ``connect`` returns a ``Bus``.

A bus makes producers, consumers and the cluster's ``admin``.

Threads may share a bus, and a child process may use it after a fork. Threads may share a producer
too, but only one thread at a time may use a consumer. After a fork, the child process must create
producers and consumers of its own."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from broker_lite.bus.face import BusFace, connect_options
from broker_lite.bus.reading import NATIVE_SESSION_TIMEOUT_MS, membership, reading
from broker_lite.client.callbacks import Callback, Callbacks
from broker_lite.client.closing import ClosedByWith
from broker_lite.client.discovery import resolve
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.client.options import build
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import InvalidConfigError
from broker_lite.model import TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.consuming.consumer import Consumer
    from broker_lite.client.producing.producer import Producer
    from broker_lite.client.transactions.producer import BusTransaction, TransactionalProducer
    from broker_lite.native.streams import MessageStreams


def connect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    zookeeper: str | None = None,
    client_id: str = "logbus",
    **options: Any,
) -> Bus:
    """Connect to a cluster and check that a broker answers.

    Give ``bootstrap_servers`` ("host:port,…") or ``zookeeper`` ("host:port,…/chroot"). Without
    them, the environment variables LOGBUS_BOOTSTRAP_SERVERS and LOGBUS_ZOOKEEPER name the cluster,
    else ``bootstrap.servers`` in the file that LOGBUS_CLIENT_CONFIG names, else it is the cluster
    that ``logbus up`` started last.

    ``options`` are defaults for the bus's producers and consumers. They may also set how the bus
    encrypts its connections and logs in: ``security_protocol``, ``sasl_mechanism``,
    ``sasl_username``, ``sasl_password``, ``sasl_jaas_config``, ``ssl_ca_location``, …, or
    ``client_config``, the path of a file with such settings. Without these options, the bus reads
    the file that LOGBUS_CLIENT_CONFIG names, else the file that ``logbus up --secure`` wrote for
    the cluster.

    Raises NoClusterError, NoBrokersError (after five seconds), SaslAuthenticationError, TlsError or
    InvalidConfigError.
    """
    arguments = connect_options(options)
    servers = resolve(bootstrap_servers, zookeeper)
    bus = Bus(servers, client_id=client_id, zookeeper=zookeeper, **arguments)
    bus.admin.describe_cluster()
    return bus


class Bus(BusFace["Consumer", "TransactionalProducer"], ClosedByWith):
    """The client of one cluster: it makes producers, consumers and transactions.

    ``admin`` describes and changes the cluster. ``close``, or the end of a ``with`` block, closes
    the bus and its consumers.
    """

    def _open(self) -> None:
        self._streams: weakref.WeakSet[MessageStreams] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Bus({self.bootstrap_servers!r})"

    @overload
    def producer(self, *, transactional_id: str, **options: Any) -> TransactionalProducer: ...

    @overload
    def producer(self, **options: Any) -> Producer: ...

    def producer(self, **options: Any) -> Producer:
        """Return a producer. It connects to the brokers when it sends its first record.

        Options are those of ``ProducerConfig``, under its names or Kafka's names: ``acks`` ("all"),
        ``linger_ms`` (5), ``batch_bytes`` (2 MiB), ``buffer_bytes`` (64 MiB), ``compression``
        ("none", "lz4", "zstd"), ``delivery_timeout_ms`` (120,000), … ``conf/client.conf`` explains
        them. With ``transactional_id`` the producer is a ``TransactionalProducer``, with ``begin``,
        ``commit`` and ``abort``. Raises InvalidConfigError for an unknown option or a wrong
        value."""
        config = build(ProducerConfig, options, self._options)
        if config.transactional_id:
            from broker_lite.client.transactions.producer import TransactionalProducer

            return TransactionalProducer(self.bootstrap_servers, config)
        from broker_lite.client.producing.producer import Producer

        return Producer(self.bootstrap_servers, config)

    def transaction(
        self, transactional_id: str, *, timeout_ms: int = 60_000, **options: Any
    ) -> BusTransaction:
        """Return a transaction: ``with bus.transaction("copier-1") as txn``.

        The end of the block commits the transaction, and an exception aborts it. ``txn`` has
        ``send``, ``send_arrow`` and ``send_offsets``. The coordinator aborts a transaction that is
        open for ``timeout_ms``.

        Give each running program a transactional id of its own, and the same id after a restart.
        The first transaction of a program fences all older producers with this id. After the
        transaction, the bus keeps the producer for the next transaction with the same id. Options
        are those of ``producer``.

        Raises FencedError (another program uses the id: stop), TransactionAbortedError (begin the
        transaction again) and UnknownOutcomeError (call ``txn.commit()`` again).
        """
        from broker_lite.client.transactions.producer import BusTransaction, TransactionalProducer

        config = self._transaction_config(transactional_id, timeout_ms, options)

        def release(producer: TransactionalProducer) -> None:
            for each in self._idle.release(producer):
                each.end()

        producer = self._idle.acquire(config)
        return BusTransaction(
            producer or TransactionalProducer(self.bootstrap_servers, config), release
        )

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
        """Return a consumer of topics, alone or as a member of a ``group``.

        Members of a group share the partitions of their topics. ``pattern`` chooses all
        topics whose whole name matches, including topics that are created later. A broker
        coordinates the group, and Kafka's clients may be members. With
        ``coordination="zookeeper"`` the members coordinate through ZooKeeper: see
        ``create_message_streams``. With chosen ``partitions`` the consumer is not a member, and may
        commit to the group only while the group has no members.

        The consumer calls ``on_assign`` after an assignment, ``on_revoke`` before a revocation and
        ``on_lost`` after a loss, each as ``callback(consumer, partitions)``. See ``Callbacks``.

        Options are those of ``ConsumerConfig``: ``start`` ("latest", "earliest" or "none"; the
        command ``logbus consume`` has another default, "earliest"), ``auto_commit`` (True, every
        ``auto_commit_interval_ms``, 5,000), ``on_corrupt`` ("fail" or "skip"), ``local_reads``
        (True), ``isolation_level``, … A group member also has those of ``MemberConfig``:
        ``session_timeout_ms`` (45,000), ``max_poll_interval_ms`` (300,000), ``group_instance_id``
        for static members, ``assignors`` ("range,cooperative-sticky"), … ``conf/client.conf``
        explains them.

        Raises UnknownTopicOrPartitionError, InvalidConfigError, and InconsistentGroupProtocolError
        if the group's members coordinate through ZooKeeper.
        """
        from broker_lite.client.consuming.consumer import Consumer
        from broker_lite.client.membership.kafka_membership import in_group

        group = options.pop("group_id", group) if group is None else group
        subscription = reading(topics, partitions, pattern, group)
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        kind = membership(coordination, subscription, options, callbacks)
        if kind == "zookeeper":
            return self.create_message_streams(
                *subscription.topics, group=group, pattern=pattern, **callbacks._asdict(), **options
            )[0]
        is_member = kind == "kafka"
        consumer = Consumer(
            self.bootstrap_servers,
            subscription.topics,
            group=group,
            partitions=subscription.partitions,
            config=build(MemberConfig if is_member else ConsumerConfig, options, self._options),
            callbacks=callbacks,
            joining=in_group(subscription.topics, pattern) if is_member else None,
        )
        self._consumers.add(consumer)
        return consumer

    def create_message_streams(
        self,
        *topics: str | TopicPartition | Iterable[str],
        streams: int = 1,
        group: str | None = None,
        pattern: str | None = None,
        zookeeper: str | None = None,
        session_timeout_ms: int = NATIVE_SESSION_TIMEOUT_MS,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        **options: Any,
    ) -> MessageStreams:
        """Join a native group as one consumer with several streams, each for a thread of its own.

        No broker coordinates a native group. Its consumers see each other in ZooKeeper, and share
        the partitions by range assignment. ``pattern``, in place of topics, subscribes to all
        topics whose whole name matches, including topics that are created later. ``zookeeper`` is
        ZooKeeper's address. Its default is the first of these that is set: the address given to
        ``connect``, LOGBUS_ZOOKEEPER, the ZooKeeper of the brokers. A consumer that sends ZooKeeper
        no heartbeat for ``session_timeout_ms`` loses its partitions.

        Raises InconsistentGroupProtocolError if the group has Kafka members,
        CoordinationUnavailableError, and UnknownTopicOrPartitionError.
        """
        from broker_lite.native.streams import NativeOptions, open_streams

        group = options.pop("group_id", group) if group is None else group
        subscription = reading(topics, None, pattern, group)
        if subscription.partitions is not None:
            raise InvalidConfigError(
                "with a group, give topics and not partitions: the group assigns the partitions"
            )
        native = NativeOptions(
            subscription.topics,
            pattern,
            group,
            zookeeper or self.zookeeper,
            session_timeout_ms,
            build(ConsumerConfig, options, self._options),
            streams,
        )
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        opened = open_streams(self.admin, self.bootstrap_servers, native, callbacks)
        # Add ``opened`` and each of its streams: the sets ``_streams`` and ``_consumers`` hold only
        # weak references, and the caller may drop ``opened`` and use a stream alone.
        self._streams.add(opened)
        self._consumers.update(opened)
        return opened

    # Methods that call ``admin``.

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> str:
        """Create a topic and return its id. See ``Admin.create_topic``."""
        return self.admin.create_topic(
            name, partitions, replication_factor, config, if_not_exists=if_not_exists
        )

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic and its records."""
        self.admin.delete_topic(name, if_exists=if_exists)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(self.admin.cluster().topics)

    def cluster(self) -> ClusterView:
        """Return the cluster's brokers, its controller and all topics."""
        return self.admin.cluster()

    # Methods that close the bus.

    def close(self) -> None:
        """Close the bus's consumers (see ``Consumer.close``) and the pooled connections.

        The bus closes the producers of its transactions too. It leaves other producers open,
        because their ``close`` may wait until unsent records are acknowledged; close them yourself.
        Raises the error of a consumer's last commit, after everything is closed.
        """
        with contextlib.ExitStack() as closing:
            closing.callback(self.admin.close)
            for producer in self._idle.drain():
                closing.callback(producer.close)
            for consumer in self._consumers:
                closing.callback(_close_open, consumer)
            # The exit stack runs in reverse order, so it closes streams before their consumers.
            for streams in self._streams:
                closing.callback(_close_open, streams)


def _close_open(reading: Consumer | MessageStreams) -> None:
    if reading.is_open:
        reading.close()
