"""ZooKeeper in virtual time: writes in one order, versions, sessions and one-shot watches.

``ZkService`` is the ensemble; ``SimZk`` is one client's MetadataStore. A client receives responses
and watch events in one order, as ZooKeeper guarantees. Faults: ``cut`` and ``heal`` a client,
``stop`` and ``start`` the service, lose the response of an applied write, expire a session,
``pause`` a client. The module works on any asyncio loop, but is deterministic and instant only on
``SimLoop``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from sim.scheduler import OUTSIDE, WALL_BEGAN_MS

from broker_lite.errors import CoordinationUnavailableError
from broker_lite.metadata.store import (
    Check,
    ChildrenChanged,
    Connected,
    Create,
    DataChanged,
    Delete,
    Operation,
    Refused,
    SessionLost,
    Set,
    StoreEvent,
    Suspended,
    Znode,
    check_size,
)

_STEP_S = 1e-6
"""Virtual seconds between two messages of a connection, so that they keep their order."""


@dataclass
class _Node:
    data: bytes
    version: int
    created_zxid: int
    owner: int
    modified_ms: int = WALL_BEGAN_MS
    modified_zxid: int = 0
    children: set[str] = field(default_factory=set)

    def read(self) -> Znode:
        return Znode(
            self.data,
            self.version,
            self.created_zxid,
            self.owner,
            self.modified_ms,
            self.modified_zxid,
        )


@dataclass
class _Session:
    session_id: int
    client: SimZk
    alive: bool = True
    connected: bool = True


class ZkService:
    """A ZooKeeper ensemble.

    ``delay_s`` is the longest message delay. ``session_timeout_s`` applies to every session.
    """

    def __init__(
        self, rng: random.Random, *, delay_s: float = 0.002, session_timeout_s: float = 6.0
    ) -> None:
        self.rng = rng
        self.delay_s = delay_s
        self.session_timeout_s = session_timeout_s
        self.running = True
        self.zxid = 0
        self.lost_reply_rate = 0.0
        """Fraction of writes that are applied, but whose response is lost with the connection."""
        self.lost_request_rate = 0.0
        """Fraction of writes that are lost with the connection and not applied."""
        self.on_write: Callable[[int, Sequence[Operation]], None] | None = None
        self._nodes: dict[str, _Node] = {"": _Node(b"", 0, 0, 0)}
        self._sessions: dict[int, _Session] = {}
        self._data_watches: dict[str, dict[int, _Session]] = {}
        self._child_watches: dict[str, dict[int, _Session]] = {}
        self._clients: list[SimZk] = []

    def client(self, context: Context | None = None) -> SimZk:
        """Return a MetadataStore that is not started yet; its callbacks run in ``context``."""
        client = SimZk(self, context)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """Lose ZooKeeper's quorum: every client is disconnected, and no session expires."""
        self.running = False
        for client in self._clients:
            client.lose_connection()

    def start(self) -> None:
        """Regain ZooKeeper's quorum: the timeout of each session starts anew."""
        self.running = True
        for client in self._clients:
            if client.wants_connection:
                client.reconnect_soon()
        for session in list(self._sessions.values()):
            if session.alive and not session.connected:
                self.watch_silence(session)

    # The methods below apply operations of clients, each at one instant.

    def open_session(self, client: SimZk) -> _Session:
        self.zxid += 1
        session = _Session(self.zxid, client)
        self._sessions[session.session_id] = session
        return session

    def watch_silence(self, session: _Session) -> None:
        """Expire the session unless its client reconnects before the session timeout."""

        def expire() -> None:
            is_silent = not session.connected or session.client.is_paused
            if self.running and session.alive and is_silent:
                self.end_session(session)

        asyncio.get_running_loop().call_later(self.session_timeout_s, expire, context=OUTSIDE)

    def end_session(self, session: _Session) -> None:
        if not session.alive:
            return
        session.alive = False
        del self._sessions[session.session_id]
        owned = [p for p, node in self._nodes.items() if node.owner == session.session_id]
        for path in sorted(owned, reverse=True):
            self.zxid += 1
            self._delete(path)

    def get(self, session: _Session, path: str, watch: bool) -> Znode | None:
        if watch:
            self._data_watches.setdefault(path, {})[session.session_id] = session
        node = self._nodes.get(path)
        if node is None:
            return None
        return node.read()

    def children(self, session: _Session, path: str, watch: bool) -> list[str] | None:
        node = self._nodes.get(path)
        if node is None:
            return None
        if watch:
            self._child_watches.setdefault(path, {})[session.session_id] = session
        return sorted(node.children)

    def sync(self, path: str) -> None:
        """Wait for one round trip only, because no read is ever stale here."""

    def write(self, session: _Session, operations: Sequence[Operation]) -> Refused | None:
        refused = self._check(operations)
        if refused is not None:
            return refused
        self.zxid += 1
        for operation in operations:
            self._apply(session, operation)
        if self.on_write is not None:
            self.on_write(session.session_id, operations)
        return None

    def _check(self, operations: Sequence[Operation]) -> Refused | None:
        """Check a multi-operation as ZooKeeper does: an operation sees the results of earlier ones.

        Return the error of the first operation that fails, or None.
        """
        versions: dict[str, int | None] = {}
        births: dict[str, int] = {}

        def version(path: str) -> int | None:
            if path in versions:
                return versions[path]
            node = self._nodes.get(path)
            return None if node is None else node.version

        def child_count(path: str) -> int:
            node = self._nodes.get(path)
            return (len(node.children) if node else 0) + births.get(path, 0)

        for position, operation in enumerate(operations):
            path, found = operation.path, version(operation.path)
            parent = path.rpartition("/")[0]
            if isinstance(operation, Create):
                if found is not None:
                    return Refused(position, operation, "exists")
                if version(parent) is None:
                    return Refused(position, operation, "missing")
                versions[path] = 0
                births[parent] = births.get(parent, 0) + 1
                continue
            if found is None:
                return Refused(position, operation, "missing")
            if operation.version not in (-1, found):
                return Refused(position, operation, "version")
            if isinstance(operation, Set):
                versions[path] = found + 1
            elif isinstance(operation, Delete):
                if child_count(path):
                    return Refused(position, operation, "not_empty")
                versions[path] = None
                births[parent] = births.get(parent, 0) - 1
        return None

    def _apply(self, session: _Session, operation: Operation) -> None:
        path = operation.path
        match operation:
            case Check():
                return
            case Create():
                owner = session.session_id if operation.ephemeral else 0
                self._nodes[path] = _Node(
                    operation.data, 0, self.zxid, owner, self._wall_ms(), self.zxid
                )
                parent, _, name = path.rpartition("/")
                self._nodes[parent].children.add(name)
                self._fire(self._data_watches, path, DataChanged(path))
                self._fire(self._child_watches, parent, ChildrenChanged(parent))
            case Set():
                node = self._nodes[path]
                node.data = operation.data
                node.version += 1
                node.modified_ms = self._wall_ms()
                node.modified_zxid = self.zxid
                self._fire(self._data_watches, path, DataChanged(path))
            case Delete():
                self._delete(path)

    def _delete(self, path: str) -> None:
        del self._nodes[path]
        parent, _, name = path.rpartition("/")
        self._nodes[parent].children.discard(name)
        self._fire(self._data_watches, path, DataChanged(path))
        self._fire(self._child_watches, path, ChildrenChanged(path))
        self._fire(self._child_watches, parent, ChildrenChanged(parent))

    def _fire(self, watches: dict[str, dict[int, _Session]], path: str, event: StoreEvent) -> None:
        for session in watches.pop(path, {}).values():
            if session.connected:
                session.client.deliver(event)

    def forget_watches(self, session: _Session) -> None:
        """Drop the watches of a session whose connection was lost."""
        for watches in (self._data_watches, self._child_watches):
            for sessions in watches.values():
                sessions.pop(session.session_id, None)

    def client_of(self, session_id: int) -> SimZk:
        return self._sessions[session_id].client

    def _wall_ms(self) -> int:
        """Return the wall-clock time in ms; outside an event loop, that of the loop's start."""
        try:
            return WALL_BEGAN_MS + int(asyncio.get_running_loop().time() * 1000)
        except RuntimeError:
            return WALL_BEGAN_MS

    def peek(self, path: str) -> Znode | None:
        """Return a znode to a checker of the simulation, which has no ZooKeeper session."""
        node = self._nodes.get(path)
        return None if node is None else node.read()

    def peek_children(self, path: str) -> list[str]:
        node = self._nodes.get(path)
        return sorted(node.children) if node else []


class SimZk:
    """The simulated ZooKeeper connection of one client; implements MetadataStore."""

    def __init__(self, service: ZkService, context: Context | None = None) -> None:
        self._service = service
        self._context = context
        self.is_paused = False
        self.lag_s = 0.0
        """Additional delay in seconds of this client's responses and watch events."""
        self._session: _Session | None = None
        self._connected = False
        self._reachable = True
        self._closed = False
        self._connection = 0
        self._sent_until = 0.0
        self._answered_until = 0.0
        self._under_way: dict[int, asyncio.Future[Any]] = {}
        self._next_request = 0
        self._on_event: Callable[[StoreEvent], None] = lambda event: None

    # The methods below implement MetadataStore.

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def session_id(self) -> int:
        return self._session.session_id if self._session else 0

    @property
    def session_timeout_ms(self) -> int:
        return round(self._service.session_timeout_s * 1000)

    async def start(self, on_event: Callable[[StoreEvent], None]) -> None:
        self._on_event = on_event
        self._closed = False  # A native consumer's next session uses the same object.
        if not (self._service.running and self._reachable):
            raise _unavailable()
        self._session = self._service.open_session(self)
        self._connected = True
        self._on_event(Connected(self.session_id, True))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connected = False
        self._fail_under_way()
        if self._session is not None:
            self._session.connected = False
            if self._reachable and self._service.running:
                self._service.end_session(self._session)

    async def get(self, path: str, *, watch: bool = False) -> Znode | None:
        result: Znode | None = await self._ask(
            lambda session: self._service.get(session, path, watch)
        )
        return result

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        result: list[str] | None = await self._ask(
            lambda session: self._service.children(session, path, watch)
        )
        return result

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        operations = tuple(operations)
        check_size(operations)
        result: Refused | None = await self._ask(
            lambda session: self._service.write(session, operations), may_lose_reply=True
        )
        return result

    async def sync(self, path: str) -> None:
        await self._ask(lambda _: self._service.sync(path))

    # The methods below inject faults.

    @property
    def wants_connection(self) -> bool:
        return not self._closed and not self._connected and self._session is not None

    def pause(self) -> None:
        """Pause the client's process: it sends no heartbeats and receives nothing."""
        self.is_paused = True
        if self._connected and self._session is not None:
            self._service.watch_silence(self._session)

    def resume(self) -> None:
        """Resume the client's process; it now learns whether its session has expired."""
        self.is_paused = False
        if self._connected and self._session is not None and not self._session.alive:
            self.lose_connection()
            self.reconnect_soon()

    def cut(self) -> None:
        """Drop all packets of this client until ``heal`` is called."""
        self._reachable = False
        self.lose_connection()

    def heal(self) -> None:
        self._reachable = True
        if self.wants_connection:
            self.reconnect_soon()

    def kill(self) -> None:
        """Kill the client's process; its session expires after the session timeout."""
        self._on_event = _nobody_hears
        self._reachable = False
        self.lose_connection()
        self._closed = True

    def expire(self) -> None:
        """Expire the session although the client's process lives."""
        assert self._session is not None
        session = self._session
        self.lose_connection()
        self._service.end_session(session)
        self.reconnect_soon()

    def lose_connection(self) -> None:
        """Break the connection; requests in flight may or may not have been applied."""
        if not self._connected:
            return
        self._connected = False
        self._connection += 1
        session = self._session
        assert session is not None
        session.connected = False
        self._service.forget_watches(session)
        if self._service.running:
            self._service.watch_silence(session)
        self._tell(Suspended())
        self._fail_under_way()

    def reconnect_soon(self) -> None:
        connection = self._connection
        delay = 0.02 + self._service.rng.random() * 0.2

        def reconnect() -> None:
            if (
                self._connected
                or self._closed
                or connection != self._connection
                or not (self._reachable and self._service.running)
            ):
                return
            session = self._session
            assert session is not None
            self._connected = True
            if session.alive:
                session.connected = True
                self._on_event(Connected(session.session_id, False))
                return
            self._on_event(SessionLost())
            self._session = self._service.open_session(self)
            self._on_event(Connected(self.session_id, True))

        asyncio.get_running_loop().call_later(delay, reconnect, context=self._context)

    # The methods below deliver messages.

    def deliver(self, event: StoreEvent) -> None:
        connection = self._connection

        def arrive() -> None:
            if connection == self._connection and self._connected:
                self._on_event(event)

        self._to_client(arrive)

    async def _ask(
        self, request: Callable[[_Session], Any], *, may_lose_reply: bool = False
    ) -> Any:
        if not self._connected:
            raise _unavailable()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        number = self._next_request = self._next_request + 1
        self._under_way[number] = future
        connection, session = self._connection, self._session
        assert session is not None

        def last_words() -> None:
            if session.alive and self._service.running:
                request(session)

        def arrive() -> None:
            # Packets that were sent before the connection was lost may still arrive for a while.
            if not (session.alive and self._service.running):
                return
            if connection != self._connection:
                fate = self._service.rng.random()
                if fate < 0.3 and self._closed:
                    # The network may delay the last messages of a killed process.
                    loop.call_later(self._service.rng.random() * 2, last_words, context=OUTSIDE)
                if fate < 0.6:
                    return
            rate = self._service.lost_request_rate
            if may_lose_reply and rate and self._service.rng.random() < rate:
                self.lose_connection()
                self.reconnect_soon()
                return
            answer = request(session)
            if may_lose_reply and self._service.rng.random() < self._service.lost_reply_rate:
                self.lose_connection()
                self.reconnect_soon()
                return
            self._to_client(lambda: None if future.done() else future.set_result(answer))

        self._sent_until = max(self._sent_until + _STEP_S, loop.time() + self._delay())
        loop.call_at(self._sent_until, arrive, context=OUTSIDE)
        try:
            return await future
        finally:
            self._under_way.pop(number, None)

    def _to_client(self, function: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        delay = self._delay()
        if self.lag_s:
            delay += self._service.rng.random() * self.lag_s
        self._answered_until = max(self._answered_until + _STEP_S, loop.time() + delay)
        loop.call_at(self._answered_until, function, context=self._context)

    def _delay(self) -> float:
        return self._service.rng.random() * self._service.delay_s

    def _tell(self, event: StoreEvent) -> None:
        """Deliver a connection event to the client, in the context of its process."""
        if self._context is None:
            self._on_event(event)
        else:
            asyncio.get_running_loop().call_soon(self._on_event, event, context=self._context)

    def _fail_under_way(self) -> None:
        for future in list(self._under_way.values()):
            if not future.done():
                future.set_exception(_unavailable())


def _nobody_hears(event: StoreEvent) -> None:
    """Drop a connection event, because its receiver is dead."""


def _unavailable() -> CoordinationUnavailableError:
    return CoordinationUnavailableError("the simulated ZooKeeper does not answer")
