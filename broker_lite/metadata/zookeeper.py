"""The connection to ZooKeeper: MetadataStore implemented with kazoo, which only this module
imports.

kazoo runs callbacks on its own threads. Each callback only passes a value to the event loop; all
state belongs to the loop's thread. When the connection is lost, requests in flight fail at once
with CoordinationUnavailableError. kazoo may still send such a request on the next connection,
before any new one. A read on that connection therefore shows the effect of the request.

Without a credential, every ZooKeeper client may read and write every znode. With a credential
(``zookeeper.auth.file``), only its holder may use new znodes, by ZooKeeper's digest scheme."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import (
    EXCEPTIONS,
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

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
    RefusalReason,
    Refused,
    SessionLost,
    Set,
    StoreEvent,
    Suspended,
    Znode,
    check_size,
)
from broker_lite.metadata.zookeeper_tls import TLS_ENABLE, ZooKeeperTls, handshake_failure
from broker_lite.model import CommittedOffset, Endpoint, TopicPartition

_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
# kazoo warns at every attempt to reconnect; ``server/cluster/registry.py`` logs the loss once.
_kazoo_log.setLevel(logging.ERROR)

_RECONNECT_DELAY_S = 0.05
_RECONNECT_DELAY_MAX_S = 0.2
"""Maximum seconds between attempts to reconnect. kazoo's default of a minute would delay the
recovery of the cluster after an outage of ZooKeeper."""
SECURING_S = 20.0
"""Seconds within which ``close_znodes`` must have connected to ZooKeeper."""
_HANDSHAKE_S = 0.5
"""Seconds to wait for ZooKeeper's first answer on a new connection. Each retry doubles the wait."""

_REASONS: dict[type[Exception], RefusalReason] = {
    NodeExistsError: "exists",
    NoNodeError: "missing",
    BadVersionError: "version",
    NotEmptyError: "not_empty",
}
_FAILED_WITH_OTHERS = (RolledBackError, RuntimeInconsistency)
"""kazoo's results for operations that failed only because another operation of the write failed."""

READS_AT_ONCE_MAX = 100
"""Maximum reads in one request to ZooKeeper."""

OPERATIONS = ("children", "create", "exists", "get", "sync", "write")
"""The kinds of requests that ``ZooKeeperStore.on_answer`` names."""


def split_address(address: str) -> tuple[str, str]:
    """Split ``host:port,…/chroot`` into hosts and chroot; the chroot is "" if there is none. Raises
    InvalidConfigError."""
    hosts, _, chroot = address.partition("/")
    names = [part.strip() for part in hosts.split(",") if part.strip()]
    if not names or any(not name.rpartition(":")[2].isdecimal() for name in names):
        raise InvalidConfigError(
            f"zookeeper.connect={address!r}: give host:port[,host:port…][/chroot]"
        )
    chroot = chroot.strip("/")
    return ",".join(names), f"/{chroot}" if chroot else ""


def read_auth_file(path: str | Path) -> tuple[str, ...]:
    """Return the credentials in the file that ``zookeeper.auth.file`` names: one or two lines
    ``name:password``. Raises InvalidConfigError, which names the file and never its content."""
    if not path:
        return ()
    file = Path(path)
    try:
        lines = file.read_text("utf-8").split()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidConfigError(
            f"zookeeper.auth.file={path}: the file cannot be read: {reason}"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidConfigError(
            f"zookeeper.auth.file={path}: other users may read it; run: chmod 600 {path}"
        )
    if not 1 <= len(lines) <= 2 or not all(line.partition(":")[2] for line in lines):
        raise InvalidConfigError(
            f"zookeeper.auth.file={path}: write one line name:password, or two while the "
            "credential is rotated"
        )
    return tuple(lines)


def close_znodes(
    address: str,
    auth_file: Path,
    seeds: Mapping[str, bytes],
    *,
    closes_root: bool = False,
    tls: ZooKeeperTls | None = None,
) -> int:
    """Make a cluster's znodes usable only with the credentials in ``auth_file``. Return the number
    of znodes.

    Also store the znodes ``seeds``, as data by path. Znodes that only a former credential may use
    become usable with those in the file, if the file still contains the former one. ``closes_root``
    also restricts ZooKeeper's root, so that other clients cannot create znodes there. The function
    blocks. Raises CoordinationUnavailableError, and InvalidConfigError if znodes belong to another
    credential."""
    auth = read_auth_file(auth_file)
    with _reading(address, SECURING_S, auth, tls) as (client, chroot):
        client.ensure_path(chroot or "/", CREATOR_ALL_ACL)
        for path, data in seeds.items():
            client.ensure_path(chroot + path, CREATOR_ALL_ACL)
            client.set(chroot + path, data)
        top = chroot or "/"
        client.set_acls(top, CREATOR_ALL_ACL)
        # ZooKeeper stores only hashes of credentials. Read this client's hashes from one znode, to
        # compare the other znodes with them.
        owners = _owners(client, top)
        if closes_root or _owns(client, "/", owners):
            client.set_acls("/", CREATOR_ALL_ACL)
        paths = _tree(client, top)
        for path in paths:
            if _owners(client, path) not in (None, owners):
                client.set_acls(path, CREATOR_ALL_ACL)
        left = [path for path in paths if _is_open(client, path)]
        if left:
            raise InvalidConfigError(
                f"znode {left[0]} of {address} is still open to all clients; run the command again"
            )
        return len(paths)


def _tree(client: KazooClient, path: str) -> list[str]:
    """Return the paths of a znode and of all znodes below it, parents first."""
    listed, waiting = [], [path]
    while waiting:
        path = waiting.pop()
        listed.append(path)
        waiting += [f"{path.rstrip('/')}/{name}" for name in _children(client, path)]
    return listed


def _owners(client: KazooClient, path: str) -> frozenset[tuple[str, str]] | None:
    """Return the scheme and id of each entry in a znode's ACL; None if the znode does not exist."""
    try:
        acls, _ = client.get_acls(path)
    except NoNodeError:
        return None
    return frozenset((acl.id.scheme, acl.id.id) for acl in acls)


def _owns(client: KazooClient, path: str, credentials: frozenset[tuple[str, str]] | None) -> bool:
    """Return whether only these credentials may use the znode at ``path``."""
    try:
        owners = _owners(client, path)
    except NoAuthError:
        return False
    return bool(owners and credentials and owners <= credentials)


def _is_open(client: KazooClient, path: str) -> bool:
    return any(scheme == "world" for scheme, _ in _owners(client, path) or ())


def read_brokers(address: str, *, timeout_s: float = 10.0) -> list[Endpoint]:
    """Return the addresses of a cluster's live brokers, in order of broker id, from ZooKeeper.

    The function blocks. Raises CoordinationUnavailableError if ZooKeeper does not answer within
    ``timeout_s``."""
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
    """Return a group's committed offsets from ZooKeeper, without asking a broker.

    The function blocks. Raises CoordinationUnavailableError if ZooKeeper does not answer within
    ``timeout_s``."""
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
    """MetadataStore over one kazoo client and its ZooKeeper session.

    ``session_timeout_ms`` is the session timeout to request. ``auth_file`` is the file with the
    credential that owns the znodes, or "" without a credential. ``tls`` is None for a connection in
    plain text."""

    def __init__(
        self,
        address: str,
        *,
        session_timeout_ms: int,
        connect_timeout_ms: int = 15_000,
        auth_file: str = "",
        tls: ZooKeeperTls | None = None,
    ) -> None:
        self._address = address
        self._hosts, self._chroot = split_address(address)
        self._connect_timeout_ms = connect_timeout_ms
        self._auth_file = auth_file
        auth = read_auth_file(auth_file)
        self._acl = CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE
        self._is_encrypted = tls is not None
        self._client: KazooClient = _client(self._hosts, session_timeout_ms / 1000, auth, tls)
        self._granted_timeout_ms = session_timeout_ms
        self._note_granted_timeout()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_event: Callable[[StoreEvent], None] = _ignore
        self._connected = False
        self._closed = False
        self._session_id = 0
        self._under_way: set[asyncio.Future[Any]] = set()
        self._reads: list[_Read] = []
        self._sync: asyncio.Future[None] | None = None
        """The future of the sync that starts in the event loop's next iteration, or None."""
        self._has_multi_read = True
        """Whether ZooKeeper supports the request multiRead, which came with version 3.6."""
        self.on_answer: Callable[[str, float], None] | None = None
        """Called after each request with its kind and its duration in seconds, for metrics."""
        self.on_refused: Callable[[], None] | None = None
        """Called for each write that ZooKeeper refuses, for metrics."""

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that ZooKeeper granted, which may differ from the requested
        timeout."""
        return self._granted_timeout_ms

    def _note_granted_timeout(self) -> None:
        """Record the session timeout that ZooKeeper grants, each time kazoo connects.

        kazoo reports only its own read timeout, two thirds of the session timeout."""
        handler: Any = self._client._connection
        connect = handler._connect

        def connect_and_note(*arguments: Any) -> Any:
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            self._granted_timeout_ms = round(read_timeout_ms * 3 / 2)
            return read_timeout_ms, connect_timeout_ms

        handler._connect = connect_and_note

    async def start(self, on_event: Callable[[StoreEvent], None]) -> None:
        """Connect and create the chroot. Raises CoordinationUnavailableError after the timeout."""
        loop = self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._client.add_listener(self._on_state)
        live = self._client.start_async()
        timeout_s = self._connect_timeout_ms / 1000
        if not await loop.run_in_executor(None, live.wait, timeout_s):
            await self.close()
            hint = "" if self._is_encrypted else "; if its port has TLS, set " + TLS_ENABLE
            cause = _tls_failure(self._client) or f"no answer in {timeout_s:g} s{hint}"
            raise _unavailable(self._address, cause)
        # kazoo's own report of the connection may still be on its way to the event loop, so do not
        # wait for it.
        self._take_state(KazooState.CONNECTED, self._kazoo_session_id())
        path = ""
        for part in self._chroot.split("/")[1:]:
            path += f"/{part}"
            # It is no error if another client has created this part of the chroot meanwhile.
            with contextlib.suppress(NodeExistsError):
                await self._request("create", self._client.create_async, path, b"", acl=self._acl)

    async def close(self) -> None:
        """End the session. ZooKeeper deletes the session's ephemeral znodes at once.

        A caller may cancel the wait: the process can exit even if ZooKeeper does not answer."""
        if self._closed:
            return
        self._closed = True
        self._connected = False
        self._client.remove_listener(self._on_state)
        self._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # kazoo may wait two thirds of the session timeout for ZooKeeper's answer, so let it wait on
        # a daemon thread. If the process exits meanwhile, Python does not wait for a daemon thread,
        # but it would wait for a thread of asyncio's executor.
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
        """Return the znode; None if it does not exist. With ``watch``, its next change, creation or
        deletion raises one DataChanged event."""
        full = self._chroot + path
        while True:
            try:
                if watch:
                    answer = await self._request(
                        "get", self._client.get_async, full, self._on_watch
                    )
                else:
                    answer = await self._read("get", GetData(full, None))
            except NoNodeError:
                if not watch:
                    return None
                # A get sets no watch on a missing znode, but exists does. If exists finds the
                # znode, another client has just created it: get it again.
                status = await self._request(
                    "exists", self._client.exists_async, full, self._on_watch
                )
                if status is None:
                    return None
                continue
            data, stat = answer
            owner = stat.ephemeralOwner
            return Znode(data, stat.version, stat.czxid, owner, stat.mtime, stat.mzxid)

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """Return the sorted names of a znode's children; None if the znode does not exist. With
        ``watch``, the next change of the list raises one event, unless the result is None."""
        full = self._chroot + path
        try:
            if watch:
                names = await self._request(
                    "children", self._client.get_children_async, full, self._on_watch
                )
            else:
                names = await self._read("children", GetChildren(full, None))
        except NoNodeError:
            return None
        return sorted(names)

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        """Apply all operations atomically. Return None; if ZooKeeper rejects the write, return
        which operation failed and why. Raises InvalidRequestError for a write that exceeds
        ZooKeeper's limit."""
        check_size(operations)
        transaction = self._client.transaction()
        for operation in operations:
            path = self._chroot + operation.path
            match operation:
                case Check():
                    transaction.check(path, operation.version)
                case Create():
                    transaction.create(
                        path, operation.data, acl=self._acl, ephemeral=operation.ephemeral
                    )
                case Set():
                    transaction.set_data(path, operation.data, operation.version)
                case Delete():
                    transaction.delete(path, operation.version)
        results = await self._request("write", transaction.commit_async)
        for index, result in enumerate(results):
            if not isinstance(result, Exception) or isinstance(result, _FAILED_WITH_OTHERS):
                continue
            if isinstance(result, NoAuthError):
                raise _closed(self._address, self._auth_file)
            reason = _REASONS.get(type(result))
            if reason is None:
                raise _unavailable(self._address, result)
            if self.on_refused is not None:
                self.on_refused()
            return Refused(index, operations[index], reason)
        return None

    async def sync(self, path: str) -> None:
        """Wait until this connection's reads see all writes that were acknowledged before this
        call. Calls in the same iteration of the event loop share one request."""
        if self._sync is None:
            self._sync = asyncio.ensure_future(self._sync_next_turn(path))
        await asyncio.shield(self._sync)

    async def _sync_next_turn(self, path: str) -> None:
        self._sync = None  # Later calls send a new sync: this one may miss their writes.
        await self._request("sync", self._client.sync_async, self._chroot + path)

    # Methods that kazoo's threads call.

    def _on_state(self, state: str) -> None:
        self._to_loop(self._take_state, state, self._kazoo_session_id())

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._to_loop(self._take_watch, event.type, event.path)

    def _to_loop(self, function: Callable[..., None], *values: Any) -> None:
        loop = self._loop
        if loop is not None:
            # If the process is exiting, the event loop is already closed and raises RuntimeError.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *values)

    def _kazoo_session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id is not None else 0

    # Methods that run on the loop's thread.

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

    async def _request(
        self, operation: str, request: Callable[..., Any], *values: Any, **options: Any
    ) -> Any:
        """Send a request through kazoo, after the queued reads, and return the answer.

        Raises CoordinationUnavailableError without a connection: kazoo would send the request
        later."""
        self._send_reads()  # Send the batched reads first, so that requests keep their order.
        return await self._answered(
            operation, lambda future: self._submit(future, request, *values, **options)
        )

    async def _read(self, operation: str, read: Any) -> Any:
        """Return the answer to a read without a watch.

        The reads of one iteration of the event loop share a request, because a request costs as
        much as ten reads."""

        def start(future: asyncio.Future[Any]) -> None:
            assert self._loop is not None
            if not self._reads:
                self._loop.call_soon(self._send_reads)
            self._reads.append((read, future))

        return await self._answered(operation, start)

    def _send_reads(self) -> None:
        waiting = [row for row in self._reads if not row[1].done()]
        self._reads = []
        for at in range(0, len(waiting), READS_AT_ONCE_MAX):
            part = waiting[at : at + READS_AT_ONCE_MAX]
            if len(part) == 1 or not self._has_multi_read:
                for read, future in part:
                    self._submit(future, self._call, read)
            else:
                answer = self._call(_MultiRead([read for read, _ in part]))
                answer.rawlink(functools.partial(self._to_loop, self._settle_reads, part))

    def _call(self, request: Any) -> Any:
        answer = self._client.handler.async_result()
        self._client._call(request, answer)
        return answer

    def _settle_reads(self, reads: list[_Read], answer: Any) -> None:
        if isinstance(answer.exception, UnimplementedError):
            # ZooKeeper is older than 3.6: from now on, ``_send_reads`` sends reads one by one. The
            # server also closes the connection, so the retry below may fail.
            self._has_multi_read = False
            self._reads = reads + self._reads
            self._send_reads()
            return
        results = answer.value if answer.exception is None else [answer.exception] * len(reads)
        for (_, future), result in zip(reads, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _answered(self, operation: str, start: Callable[[asyncio.Future[Any]], None]) -> Any:
        """Pass a new future to ``start``, which sends the request, and return the answer.

        Raises kazoo's error for a refused operation, CoordinationUnavailableError for others."""
        if not self._connected:
            raise _unavailable(self._address, "the connection is lost")
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._under_way.add(future)
        began_s = self._loop.time()
        try:
            start(future)
            return await future
        except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError):
            raise
        except NoAuthError:
            raise _closed(self._address, self._auth_file) from None
        except KazooException as error:
            raise _unavailable(self._address, error) from None
        finally:
            self._under_way.discard(future)
            if self.on_answer is not None:
                self.on_answer(operation, self._loop.time() - began_s)

    def _submit(
        self, future: asyncio.Future[Any], request: Callable[..., Any], *values: Any, **options: Any
    ) -> None:
        answer = request(*values, **options)
        answer.rawlink(functools.partial(self._to_loop, self._settle, future))

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


_Read = tuple[Any, "asyncio.Future[Any]"]
"""A read request of kazoo, and the future that receives its answer."""


class _MultiRead:
    """ZooKeeper's request multiRead, which kazoo lacks: several reads of data and children without
    watches, answered from one state of the tree."""

    type = 22

    def __init__(self, reads: Sequence[Any]) -> None:
        self._reads = reads

    def serialize(self) -> bytes:
        parts = [MultiHeader(r.type, False, -1).serialize() + r.serialize() for r in self._reads]
        return b"".join(parts) + bytes(multiheader_struct.pack(-1, True, -1))

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """Return an answer or an exception for each read."""
        results: list[Any] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == GetData.type:
                content, offset = read_buffer(data, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                results.append((content, stat))
                offset += stat_struct.size
            elif header.type == GetChildren.type:
                (count,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                names = []
                for _ in range(count):
                    name, offset = read_string(data, offset)
                    names.append(name)
                results.append(names)
            else:
                (code,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                results.append(EXCEPTIONS[code]())
            header, offset = MultiHeader.deserialize(data, offset)
        return results


def _client(
    hosts: str, timeout_s: float, auth: Sequence[str] = (), tls: ZooKeeperTls | None = None
) -> KazooClient:
    retry = KazooRetry(
        max_tries=-1,
        delay=_RECONNECT_DELAY_S,
        backoff=2,
        max_delay=_RECONNECT_DELAY_MAX_S,
    )
    client = KazooClient(
        hosts=hosts,
        timeout=timeout_s,
        connection_retry=retry,
        logger=_kazoo_log,
        handler=_TlsHandler(tls) if tls is not None else None,
        auth_data=[("digest", credential) for credential in auth] or None,
    )
    client._connection = _Connection(client, retry.copy(), logger=_kazoo_log)
    return client


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection handler with TLS. ``select`` also returns a socket whose decrypted bytes
    wait in memory, which the operating system cannot report."""

    def __init__(self, tls: ZooKeeperTls) -> None:
        super().__init__()
        self._tls = tls
        self.failure = ""
        """Why the last TLS handshake failed; empty if it succeeded."""

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        sock = socket.create_connection(address, timeout)
        try:
            wrapped = self._tls.wrap(sock, hostname or address[0])
        except InvalidConfigError as error:
            sock.close()
            self.failure = error.message
            raise OSError(error.message) from None
        except OSError as error:
            sock.close()
            self.failure = handshake_failure(error)
            raise
        self.failure = ""
        wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return wrapped

    def select(
        self, reads: list[Any], writes: list[Any], others: list[Any], timeout: float | None = None
    ) -> Any:
        decrypted = [each for each in reads if isinstance(each, ssl.SSLSocket) and each.pending()]
        if not decrypted:
            return super().select(reads, writes, others, timeout)
        ready, *rest = super().select(reads, writes, others, 0)
        return [*decrypted, *(each for each in ready if each not in decrypted)], *rest


def _tls_failure(client: KazooClient) -> str:
    return getattr(client.handler, "failure", "")


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """A kazoo connection that repeats an unanswered handshake long before the session timeout.

    A starting ZooKeeper sometimes never answers the first request."""

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
def _reading(
    address: str, timeout_s: float, auth: Sequence[str] = (), tls: ZooKeeperTls | None = None
) -> Iterator[tuple[KazooClient, str]]:
    """Open a ZooKeeper connection for blocking calls. Yield the kazoo client and the chroot."""
    hosts, chroot = split_address(address)
    client = _client(hosts, timeout_s, auth, tls)
    try:
        client.start(timeout=timeout_s)
        yield client, chroot
    except NoAuthError:
        raise _closed(address, "") from None
    except (KazooException, KazooTimeoutError) as error:
        raise _unavailable(address, _tls_failure(client) or error) from None
    finally:
        client.stop()
        client.close()


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


def _closed(address: str, auth_file: str) -> InvalidConfigError:
    """Return the error for a cluster whose znodes need another credential than the one in
    ``auth_file`` or, without ``auth_file``, a credential."""
    if auth_file:
        return InvalidConfigError(
            f"zookeeper.auth.file={auth_file}: the znodes of {address} belong to another "
            "credential; give the file of the cluster's other brokers"
        )
    return InvalidConfigError(
        f"ZooKeeper at {address} is closed to clients: its cluster is secured. Name the brokers "
        "with bootstrap.servers, and leave out coordination='zookeeper'; a broker needs "
        "zookeeper.auth.file"
    )


def _unavailable(address: str, cause: object) -> CoordinationUnavailableError:
    text = str(cause) or type(cause).__name__
    return CoordinationUnavailableError(
        f"ZooKeeper at {address} does not answer ({text}); is it running?"
    )


def _ignore(event: StoreEvent) -> None:
    """Drop events that arrive before ``start``."""
