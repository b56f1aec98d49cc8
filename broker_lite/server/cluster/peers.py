"""Keep connections to the other brokers (peers), send requests to them, and report dead ones.

The main connection to a peer carries fetches and is always open. Each other API has a connection of
its own, because a broker answers the requests of one connection in order, so an answer that waits
for replication would delay the others.

When the main connection closes, the peer is reported as lost. If its port then refuses a new
connection, its process has probably died, and it is reported as suspected. A new connection
withdraws both reports. A timeout causes no report: a broker that hangs counts as alive until its
ZooKeeper session ends. A wrong suspicion costs availability, but no records."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from broker_lite.client.client_config import security_of_file
from broker_lite.client.transport.connection import BrokerConnection
from broker_lite.client.transport.steps import CallExchange, Exchange, FetchExchange
from broker_lite.config import BrokerConfig
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.config.listeners import ListenerConfig
from broker_lite.errors import InvalidConfigError, LogbusError, NetworkError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import OAUTHBEARER, BrokerView, Endpoint
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.access import broker_client_id
from broker_lite.server.partitions.replica_fetcher import Answered
from broker_lite.wire.api import Call
from broker_lite.wire.fetch import FLAG_IDLE, FetchRequest

logger = logging.getLogger("logbus.peers")

RETRY_MS = (0, 5, 20, 50, 100, 200, 500)
"""Milliseconds before the first and each further attempt to reconnect. The last value repeats."""
SETTLED_MS = 1000
"""Milliseconds after which a connection counts as stable: if it is then lost, the first attempt to
reconnect has no delay."""
ANSWER_MS = 5000
"""Milliseconds after which an answer is overdue. For a fetch, the wait time in its request is
added."""
SWEEP_S = 1.0
"""Seconds between two checks for overdue answers."""
IDLE_FETCHES = -1
"""The number of the lane for fetches of idle partitions.

A *lane* is an additional connection to a broker for one kind of request. Every other lane is for
one API, whose API key is the lane's number."""

T = TypeVar("T")


def security_between_brokers(config: BrokerConfig, inter_broker: ListenerConfig) -> ClientSecurity:
    """Return the TLS and login settings with which this broker connects to other brokers.

    Raises InvalidConfigError if the file ``inter.broker.client.config`` cannot be used or selects a
    login with a token: brokers cannot log in with tokens (``Authorizer.check_user_name``)."""
    file = config.inter_broker_client_config
    if not file:
        return inter_broker.peer_security
    security = security_of_file(Path(file))
    if security.mechanism == OAUTHBEARER:
        raise InvalidConfigError(
            f"inter.broker.client.config={file} has sasl.mechanism=OAUTHBEARER, but brokers cannot "
            "log in with tokens; set sasl.mechanism=SCRAM-SHA-512, and sasl.username and "
            "sasl.password of a user for brokers"
        )
    return security


class FailureListener(Protocol):
    """Receives reports about peers that seem to have died. ``Registry`` implements it."""

    def lost(self, broker_id: int, broker_epoch: int) -> None: ...

    def suspect(self, broker_id: int, broker_epoch: int) -> None: ...

    def trust(self, broker_id: int, broker_epoch: int) -> None: ...


class BrokerCalls(Protocol):
    """Sends requests to brokers of the cluster, including this broker."""

    async def send(self, broker_id: int, call: Call[T], timeout_ms: float = ANSWER_MS) -> T:
        """Send a request to a broker and return the answer.

        Requests to one broker in one iteration of the event loop are written together. Raises
        LogbusError if the broker is not registered, its connection closes, or no answer arrives in
        ``timeout_ms``; the broker may have carried out the request all the same."""


class Peers:
    """The connections to all other brokers. Call ``apply`` with each new metadata snapshot."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        *,
        clock: Clock,
        failure_listener: FailureListener,
        metrics: Metrics,
        listener: str = "PLAINTEXT",
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self.loop = loop
        self._listener = listener
        self.security = security
        self.clock = clock
        self.failure_listener = failure_listener
        self.metrics = metrics
        self.client_id = broker_client_id(config.broker_id)
        self._broker_id = config.broker_id
        self._peers: dict[int, _Peer] = {}
        self._lanes: dict[tuple[int, int], _Peer] = {}
        """Additional connections (lanes), by broker id and the lane's number. Their loss is not
        reported to ``failure_listener``."""
        self._brokers: Mapping[int, BrokerView] = {}
        self._closed = False
        self._sweep = loop.call_later(SWEEP_S, self._expire)
        metrics.gauge("peers_connected", self._count_connected)

    def address_of(self, broker: BrokerView) -> Endpoint:
        """Return a broker's address on the listener for traffic between brokers."""
        return broker.at(self._listener) or broker.endpoint

    def apply(self, snapshot: MetadataSnapshot) -> None:
        """Connect to brokers that have registered, and disconnect from brokers that have left."""
        if self._closed:
            return
        self._brokers = snapshot.brokers
        for broker_id, peer in list(self._peers.items()):
            peer.is_draining = (
                broker_id in snapshot.brokers and snapshot.brokers[broker_id].draining
            )
            if not peer.is_of(snapshot.brokers.get(broker_id)):
                del self._peers[broker_id]
                peer.close()
        for key, lane in list(self._lanes.items()):
            if not lane.is_of(snapshot.brokers.get(key[0])):
                del self._lanes[key]
                lane.close()
        for broker in snapshot.brokers.values():
            if broker.broker_id != self._broker_id and broker.broker_id not in self._peers:
                self._peers[broker.broker_id] = _Peer(self, broker)

    def fetch(self, leader: BrokerView, request: FetchRequest, answered: Answered) -> None:
        """Send a fetch request to a leader, and pass the response or the error to ``answered``.

        A request for idle partitions (``FLAG_IDLE``) may wait long for records. So it uses a
        separate connection, where it delays the answer to no other fetch."""
        peer = self._peers.get(leader.broker_id)
        if peer is None or not peer.is_of(leader):
            error = NetworkError(f"broker {leader.broker_id} is no longer registered")
            self.loop.call_soon(answered, error)
            return
        if request.flags & FLAG_IDLE:
            peer = self._lane(leader, IDLE_FETCHES)
        deadline_ms = self.clock.monotonic_ms() + request.max_wait_ms + ANSWER_MS
        if peer.request(FetchExchange(request), deadline_ms, answered):
            peer.flush()

    async def send(self, broker_id: int, call: Call[T], timeout_ms: float = ANSWER_MS) -> T:
        """Send a request to a broker and return the answer. See ``BrokerCalls.send``."""
        broker = self._brokers.get(broker_id)
        if broker is None or self._closed:
            raise NetworkError(f"broker {broker_id} is no longer registered")
        answered: asyncio.Future[T] = self.loop.create_future()

        def settle(answer: T | LogbusError) -> None:
            if answered.done():
                return
            if isinstance(answer, LogbusError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        lane = self._lane(broker, call.API_KEY)
        if lane.request(CallExchange(call), self.clock.monotonic_ms() + timeout_ms, settle):
            lane.flush_soon()
        return await answered

    def _lane(self, broker: BrokerView, lane: int) -> _Peer:
        key = broker.broker_id, lane
        peer = self._lanes.get(key)
        if peer is None:
            peer = self._lanes[key] = _Peer(self, broker, gives_hints=False)
        return peer

    def close(self) -> None:
        """Close all connections. Requests in flight fail with NetworkError."""
        self._closed = True
        self._sweep.cancel()
        for peer in (*self._peers.values(), *self._lanes.values()):
            peer.close()
        self._peers.clear()
        self._lanes.clear()

    def _expire(self) -> None:
        for peer in (*self._peers.values(), *self._lanes.values()):
            peer.expire()
        self._sweep = self.loop.call_later(SWEEP_S, self._expire)

    def _count_connected(self) -> int:
        return sum(peer.is_open for peer in self._peers.values())


class _Peer:
    """A connection to another broker. A broker that registers anew gets a new ``_Peer``.

    ``gives_hints`` marks the main connection, whose loss and return are reported to
    ``Peers.failure_listener``."""

    __slots__ = (
        "_attempt",
        "_broker",
        "_closed",
        "_connection",
        "_descriptor",
        "_gives_hints",
        "_is_flush_due",
        "_lost",
        "_open_since_ms",
        "_owner",
        "_suspected",
        "_task",
        "_timer",
        "_writes",
        "is_draining",
    )

    def __init__(self, owner: Peers, broker: BrokerView, *, gives_hints: bool = True) -> None:
        self._owner = owner
        self._broker = broker
        self._attempt = 0
        self._closed = False
        self._lost = self._suspected = False
        self._gives_hints = gives_hints
        self._is_flush_due = False
        self.is_draining = broker.draining
        self._open_since_ms = -1
        self._descriptor = -1
        self._writes = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: BrokerConnection | None = None
        self._connect()

    @property
    def is_open(self) -> bool:
        return self._open_since_ms >= 0

    def is_of(self, broker: BrokerView | None) -> bool:
        """Return whether ``broker`` has the broker epoch and the address of this connection."""
        mine = self._broker
        return (
            broker is not None
            and broker.broker_epoch == mine.broker_epoch
            and self._owner.address_of(broker) == self._owner.address_of(mine)
        )

    def request(
        self, exchange: Exchange[Any], deadline_ms: float, answered: Callable[[Any], None]
    ) -> bool:
        """Queue a request and return True.

        Without a connection, pass NetworkError to ``answered`` and return False."""
        connection = self._connection
        if connection is None or connection.closed:
            error = NetworkError(
                f"not connected to the broker at {self._owner.address_of(self._broker)}"
            )
            self._owner.loop.call_soon(answered, error)
            return False
        connection.request(exchange, deadline_ms, answered)
        return True

    def flush_soon(self) -> None:
        """Send the queued requests at the end of this iteration of the event loop."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._owner.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._is_flush_due = False
        if self._connection is not None:
            self._connection.flush()
            self._watch()

    def expire(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            connection.expire(self._owner.clock.monotonic_ms())
            self._watch()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._unwatch()
            self._connection.close(
                NetworkError(f"broker {self._broker.broker_id} left the cluster")
            )

    # Methods that open the connection and handle its end.

    def _connect(self) -> None:
        self._timer = None
        endpoint = self._owner.address_of(self._broker)
        self._connection = BrokerConnection(endpoint, self._owner.client_id, self._owner.security)
        host, port = endpoint
        try:
            addresses = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except OSError:
            self._task = self._owner.loop.create_task(self._resolve(host, port))
        else:
            self._begin(addresses)

    async def _resolve(self, host: str, port: int) -> None:
        try:
            addresses = await self._owner.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            addresses = []
            logger.warning(
                "broker %d: cannot resolve host %s: %s", self._broker.broker_id, host, error
            )
        if not self._closed:
            self._begin(list(addresses))

    def _begin(self, addresses: list[tuple[Any, ...]]) -> None:
        assert self._connection is not None
        self._connection.connect(addresses)
        self._watch()

    def _opened(self) -> None:
        broker, owner = self._broker, self._owner
        self._open_since_ms = owner.clock.monotonic_ms()
        if self._suspected:
            logger.info(
                "the connection to broker %d is open again",
                broker.broker_id,
                extra=log_event("peer_connected"),
            )
        if self._lost or self._suspected:
            self._lost = self._suspected = False
            owner.failure_listener.trust(broker.broker_id, broker.broker_epoch)

    def _ended(self, refused: bool) -> None:
        """Handle the end of the connection, or a failed attempt to connect. ``refused`` says
        whether the peer's port refused the attempt."""
        broker, owner = self._broker, self._owner
        now_ms = owner.clock.monotonic_ms()
        if self.is_open:
            if now_ms - self._open_since_ms >= SETTLED_MS:
                self._attempt = 0
            self._open_since_ms = -1
            if self._gives_hints:
                owner.metrics.count("peer_connections_lost")
                logger.info(
                    "the connection to broker %d closed",
                    broker.broker_id,
                    extra=log_event("peer_lost"),
                )
                self._lost = True
                owner.failure_listener.lost(broker.broker_id, broker.broker_epoch)
        elif refused and self._gives_hints and not self._suspected:
            self._suspected = True
            owner.metrics.count("peers_suspected")
            logger.log(
                logging.INFO if self.is_draining else logging.WARNING,
                "broker %d refuses connections at %s: its process %s",
                broker.broker_id,
                owner.address_of(broker),
                "stopped" if self.is_draining else "is suspected to have died",
            )
            owner.failure_listener.suspect(broker.broker_id, broker.broker_epoch)
        if self._closed:
            return
        delay_ms = RETRY_MS[min(self._attempt, len(RETRY_MS) - 1)]
        self._attempt += 1
        self._timer = owner.loop.call_later(delay_ms / 1000, self._connect)

    # Methods that handle the events of the connection's socket.

    def _watch(self) -> None:
        """Watch the connection's socket in the event loop, and handle its opening or closing.

        Call it after each operation on the connection, which may have opened or closed it."""
        connection = self._connection
        if connection is None or self._closed:
            return
        if connection.closed:
            refused = connection.was_refused
            self._unwatch()
            self._connection = None
            self._ended(refused)
            return
        if self._open_since_ms < 0 and not connection.connecting:
            self._opened()
        descriptor, loop = connection.fileno(), self._owner.loop
        if descriptor != self._descriptor:
            # The connection has opened another socket: one address of the host refused the
            # connection, so the client tries the next address.
            self._unwatch()
            if descriptor < 0:
                return
            self._descriptor = descriptor
            loop.add_reader(descriptor, self._readable)
        if connection.wants_write is not self._writes:
            self._writes = connection.wants_write
            if self._writes:
                loop.add_writer(descriptor, self._writable)
            else:
                loop.remove_writer(descriptor)

    def _unwatch(self) -> None:
        if self._descriptor >= 0:
            # Ignore OSError: for a closed socket, asyncio's event loop raises it, but only after it
            # has removed the reader.
            with contextlib.suppress(OSError):
                self._owner.loop.remove_reader(self._descriptor)
            with contextlib.suppress(OSError):
                self._owner.loop.remove_writer(self._descriptor)
        self._descriptor, self._writes = -1, False

    def _readable(self) -> None:
        assert self._connection is not None
        self._connection.on_readable()
        self._watch()

    def _writable(self) -> None:
        assert self._connection is not None
        self._connection.on_writable()
        self._watch()
