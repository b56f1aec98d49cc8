"""ZooKeeper behind the MetadataStore port: the only module that knows kazoo.

kazoo calls back on its own threads; every callback does nothing but hand a value to the loop with
``call_soon_threadsafe``, so no listener blocks and all state here belongs to the loop thread.
Requests that are under way when the connection is lost fail at once with
CoordinationUnavailableError; one that kazoo sends later all the same goes before any request made
on the new connection, so reading again decides. Every znode's ACL is set in ``_acl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError
from broker_lite.metadata import znodes
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
from broker_lite.model import CommittedOffset, Endpoint, TopicPartition

_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
# It warns at every attempt to reconnect; that ZooKeeper is gone is said once, by the registry.
_kazoo_log.setLevel(logging.ERROR)

_RECONNECT_DELAY_S = 0.05
_RECONNECT_DELAY_MAX_S = 0.2
"""kazoo's own would grow to a minute: a ZooKeeper that is back must be found at once."""
_HANDSHAKE_S = 0.5
"""The first wait for the answer to a handshake; each unanswered one doubles the wait."""

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (NodeExistsError, "exists"),
    (NoNodeError, "missing"),
    (BadVersionError, "version"),
    (NotEmptyError, "not_empty"),
)


def split_address(address: str) -> tuple[str, str]:
    """``host:port,…/chroot`` as hosts and chroot ("" for none). Raises InvalidConfigError."""
    hosts, _, chroot = address.partition("/")
    names = [part.strip() for part in hosts.split(",") if part.strip()]
    if not names or any(not name.rpartition(":")[2].isdigit() for name in names):
        raise InvalidConfigError(
            f"zookeeper.connect={address!r}: give host:port[,host:port…][/chroot]"
        )
    chroot = chroot.strip("/")
    return ",".join(names), f"/{chroot}" if chroot else ""


def read_brokers(address: str, *, timeout_s: float = 10.0) -> list[Endpoint]:
    """The live brokers of a cluster, by broker id; for clients that were given ZooKeeper's address.

    Blocking. Raises CoordinationUnavailableError if ZooKeeper does not answer in time.
    """
    with _reading(address, timeout_s) as (client, chroot):
        endpoints = []
        for name in sorted(_children(client, chroot + znodes.BROKER_IDS), key=int):
            path = znodes.broker_path(int(name))
            with contextlib.suppress(NoNodeError):
                data, _ = client.get(chroot + path)
                endpoints.append(znodes.decode_registration(path, data).endpoint)
        return endpoints


def read_group_offsets(
    address: str, group: str, *, timeout_s: float = 10.0
) -> dict[TopicPartition, CommittedOffset]:
    """What a group committed, as the znodes have it, without any broker.

    Blocking. Raises CoordinationUnavailableError if ZooKeeper does not answer in time.
    """
    with _reading(address, timeout_s) as (client, chroot):
        offsets = {}
        for topic in _children(client, chroot + znodes.offsets_path(group)):
            row = _children(client, chroot + znodes.topic_offsets_path(group, topic))
            for partition in sorted(int(name) for name in row):
                path = znodes.offset_path(group, topic, partition)
                with contextlib.suppress(NoNodeError):
                    data, _ = client.get(chroot + path)
                    offsets[TopicPartition(topic, partition)] = znodes.decode_offset(path, data)
        return offsets


class ZooKeeperStore:
    """The port over one kazoo client and its session.

    ``session_timeout_ms``: after so long without contact ZooKeeper ends the session.
    """

    def __init__(
        self, address: str, *, session_timeout_ms: int, connect_timeout_ms: int = 15_000
    ) -> None:
        self._address = address
        self._hosts, self._chroot = split_address(address)
        self._connect_timeout_ms = connect_timeout_ms
        self._client: KazooClient = _client(self._hosts, session_timeout_ms / 1000)
        self._granted_timeout_ms = session_timeout_ms
        self._note_granted_timeout()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_event: Callable[[StoreEvent], None] = _ignore
        self._connected = False
        self._closed = False
        self._session_id = 0
        self._under_way: set[asyncio.Future[Any]] = set()

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        """What ZooKeeper granted, which is within its own bounds, not what was asked for."""
        return self._granted_timeout_ms

    def _note_granted_timeout(self) -> None:
        """kazoo knows it where it connects and keeps no more than two thirds of it, to itself."""
        handler: Any = self._client._connection
        connect = handler._connect

        def noting(*where: Any) -> Any:
            read_timeout_ms, connect_timeout_ms = connect(*where)
            self._granted_timeout_ms = round(read_timeout_ms * 3 / 2)
            return read_timeout_ms, connect_timeout_ms

        handler._connect = noting

    async def start(self, on_event: Callable[[StoreEvent], None]) -> None:
        """Connect and make the chroot. Raises CoordinationUnavailableError after the timeout."""
        loop = self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._client.add_listener(self._on_state)
        live = self._client.start_async()
        timeout_s = self._connect_timeout_ms / 1000
        if not await loop.run_in_executor(None, live.wait, timeout_s):
            await self.close()
            raise _unavailable(self._address, f"no answer in {timeout_s:g} s")
        # The listener's own message to the loop may still be under way.
        self._take_state(KazooState.CONNECTED, self._kazoo_session_id())
        path = ""
        for part in self._chroot.split("/")[1:]:
            path += f"/{part}"
            # Below the chroot are only this cluster's znodes; its parents may be others'.
            with contextlib.suppress(NodeExistsError):
                await self._ask(self._client.create_async, path, b"", acl=self._acl(path))

    async def close(self) -> None:
        """End the session: its ephemerals vanish at once.

        A caller may give up waiting: the process can end while ZooKeeper does not answer.
        """
        if self._closed:
            return
        self._closed = True
        self._connected = False
        self._client.remove_listener(self._on_state)
        self._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # asyncio joins the threads of its executor before the process ends; kazoo may wait for
        # ZooKeeper's answer for as long as two thirds of the session timeout.
        threading.Thread(
            target=self._end_session, args=(ended.set,), name="zookeeper-close", daemon=True
        ).start()
        await ended.wait()
        self._fail_under_way()

    def _end_session(self, ended: Callable[[], None]) -> None:
        try:
            self._client.stop()
            self._client.close()
        finally:
            self._to_loop(ended)

    async def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """The znode, or None. A watch is set in both cases and fires once."""
        full = self._chroot + path
        watcher = self._on_watch if watch else None
        while True:
            try:
                data, stat = await self._ask(self._client.get_async, full, watch=watcher)
            except NoNodeError:
                if not watch:
                    return None
                # A get of nothing sets no watch; a look for it does, unless it has just come.
                if await self._ask(self._client.exists_async, full, watch=watcher) is None:
                    return None
                continue
            return Znode(data, stat.version, stat.czxid, stat.ephemeralOwner, stat.mtime)

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """Names below a path, sorted, or None if it is not there (then no watch is set)."""
        watcher = self._on_watch if watch else None
        try:
            names: list[str] = await self._ask(
                self._client.get_children_async, self._chroot + path, watch=watcher
            )
        except NoNodeError:
            return None
        return sorted(names)

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        """All or nothing. None means done. Raises InvalidRequestError as ``check_size`` does."""
        check_size(operations)
        transaction = self._client.transaction()
        for operation in operations:
            path = self._chroot + operation.path
            match operation:
                case Check():
                    transaction.check(path, operation.version)
                case Create():
                    transaction.create(
                        path,
                        operation.data,
                        acl=self._acl(operation.path),
                        ephemeral=operation.ephemeral,
                    )
                case Set():
                    transaction.set_data(path, operation.data, operation.version)
                case Delete():
                    transaction.delete(path, operation.version)
        results = await self._ask(transaction.commit_async)
        for index, result in enumerate(results):
            if isinstance(result, RolledBackError | RuntimeInconsistency):
                continue
            if isinstance(result, Exception):
                for kind, reason in _REASONS:
                    if isinstance(result, kind):
                        return Refused(index, operations[index], reason)  # type: ignore[arg-type]
                raise _unavailable(self._address, result)
        return None

    async def sync(self, path: str) -> None:
        """Reads that follow see every write that was answered to anyone before this call."""
        await self._ask(self._client.sync_async, self._chroot + path)

    def _acl(self, path: str) -> list[Any]:
        """The ACL of a znode: open, until brokers have a credential of their own."""
        return list(OPEN_ACL_UNSAFE)

    # From kazoo's threads.

    def _on_state(self, state: str) -> None:
        self._to_loop(self._take_state, state, self._kazoo_session_id())

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._to_loop(self._take_watch, event.type, event.path)

    def _to_loop(self, function: Callable[..., None], *values: Any) -> None:
        loop = self._loop
        if loop is not None:
            # The loop may have been closed by a process that ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *values)

    def _kazoo_session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id is not None else 0

    # On the loop.

    def _take_state(self, state: str, session_id: int) -> None:
        if self._closed:
            return
        if state == KazooState.CONNECTED:
            if self._connected and session_id == self._session_id:
                return
            new_session = session_id != self._session_id
            self._connected, self._session_id = True, session_id
            self._on_event(Connected(session_id, new_session))
            return
        was_connected, self._connected = self._connected, False
        self._fail_under_way()
        if state == KazooState.LOST:
            self._on_event(SessionLost())
        elif was_connected:
            self._on_event(Suspended())

    def _take_watch(self, kind: str, path: str) -> None:
        if self._closed:
            return
        path = path[len(self._chroot) :]
        if kind == EventType.CHILD:
            self._on_event(ChildrenChanged(path))
            return
        self._on_event(DataChanged(path))
        if kind == EventType.DELETED:
            self._on_event(ChildrenChanged(path))

    async def _ask(self, request: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """Make a kazoo request and await it; its errors of connection and session become ours.

        Nothing is requested without a connection: kazoo would keep it and send it later.
        """
        if not self._connected:
            raise _unavailable(self._address, "the connection is lost")
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._under_way.add(future)
        try:
            answer = request(*values, **options)
            answer.rawlink(functools.partial(self._to_loop, self._settle, future))
            return await future
        except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError):
            raise
        except KazooException as error:
            raise _unavailable(self._address, error) from None
        finally:
            self._under_way.discard(future)

    def _settle(self, future: asyncio.Future[Any], answer: Any) -> None:
        if future.done():
            return
        if answer.exception is not None:
            future.set_exception(answer.exception)
        else:
            future.set_result(answer.value)

    def _fail_under_way(self) -> None:
        for future in list(self._under_way):
            if not future.done():
                future.set_exception(_unavailable(self._address, "the connection was lost"))


def _client(hosts: str, timeout_s: float) -> KazooClient:
    retry = KazooRetry(
        max_tries=-1,
        delay=_RECONNECT_DELAY_S,
        backoff=2,
        max_delay=_RECONNECT_DELAY_MAX_S,
    )
    client = KazooClient(hosts=hosts, timeout=timeout_s, connection_retry=retry, logger=_kazoo_log)
    client._connection = _Connection(client, retry.copy(), logger=_kazoo_log)
    return client


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """A connection that does not wait a whole session timeout for the answer to a handshake.

    A ZooKeeper that is starting accepts connections, and at times never answers the first request.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handshake_s = _HANDSHAKE_S

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        wait_s = min(timeout, self._handshake_s)
        self._handshake_s *= 2
        answer = super()._invoke(wait_s, request, xid)
        self._handshake_s = _HANDSHAKE_S
        return answer


@contextlib.contextmanager
def _reading(address: str, timeout_s: float) -> Iterator[tuple[KazooClient, str]]:
    """A connection for a few blocking reads."""
    hosts, chroot = split_address(address)
    client = _client(hosts, timeout_s)
    try:
        client.start(timeout=timeout_s)
        yield client, chroot
    except (KazooException, KazooTimeoutError) as error:
        raise _unavailable(address, error) from None
    finally:
        client.stop()
        client.close()


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


def _unavailable(address: str, cause: object) -> CoordinationUnavailableError:
    text = str(cause) or type(cause).__name__
    return CoordinationUnavailableError(
        f"ZooKeeper at {address} does not answer ({text}); is it running?"
    )


def _ignore(event: StoreEvent) -> None:
    """Before start."""
