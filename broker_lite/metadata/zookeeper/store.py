"""A ``MetadataStore`` that uses a ZooKeeper session, for one event loop.

kazoo runs callbacks on its own threads. Each callback only passes a value to the event loop; all
state belongs to the loop's thread. When the connection is lost, requests in flight fail at once
with CoordinationUnavailableError. kazoo may still send a failed request on the next connection,
before any new one. A read on that connection therefore shows what the failed request did."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

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
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

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
    insist,
)
from broker_lite.metadata.zookeeper.connection import (
    credential_error,
    kazoo_client,
    read_auth_file,
    split_address,
    tls_failure,
    unavailable_error,
)
from broker_lite.metadata.zookeeper.multi_read import MultiRead
from broker_lite.metadata.zookeeper.tls import TLS_ENABLE, ZooKeeperTls

_REASONS: dict[type[Exception], RefusalReason] = {
    NodeExistsError: "exists",
    NoNodeError: "missing",
    BadVersionError: "version",
    NotEmptyError: "not_empty",
}
_FAILED_WITH_OTHERS = (RolledBackError, RuntimeInconsistency)
"""kazoo's errors for operations that failed only because another operation of the write failed."""

READS_AT_ONCE_MAX = 100
"""Maximum reads in one request to ZooKeeper."""

OPERATIONS = ("children", "create", "exists", "get", "sync", "write")
"""The kinds of requests to ZooKeeper, as ``ZooKeeperStore.on_answer`` receives them."""


class ZooKeeperStore:
    """A ``MetadataStore`` that uses one kazoo client and its ZooKeeper session.

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
        self._client = kazoo_client(self._hosts, session_timeout_ms / 1000, auth, tls)
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
        return int(self._client._connection.session_timeout_ms)

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
            cause = tls_failure(self._client) or f"no answer in {timeout_s:g} s{hint}"
            raise unavailable_error(self._address, cause)
        # Do not wait for kazoo's report that it is connected, which may still be on its way to the
        # event loop.
        self._take_state(KazooState.CONNECTED, self._kazoo_session_id())
        await insist(self._create_chroot, timeout_s)

    async def _create_chroot(self) -> None:
        path = ""
        for part in self._chroot.split("/")[1:]:
            path += f"/{part}"
            # It is no error if another client has created this part of the chroot meanwhile.
            with contextlib.suppress(NodeExistsError):
                await self._request("create", self._client.create_async, path, b"", acl=self._acl)

    async def close(self) -> None:
        """End the session. ZooKeeper deletes the session's ephemeral znodes at once.

        If ZooKeeper does not answer, the caller can cancel the call, and the process can exit."""
        if self._closed:
            return
        self._closed = True
        self._connected = False
        self._client.remove_listener(self._on_state)
        self._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # kazoo may wait two thirds of the session timeout for ZooKeeper's answer, so let it wait on
        # a daemon thread: an exit of the process would wait for a thread of asyncio's executor.
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
        deletion causes a DataChanged event."""
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
        ``watch``, the next change of the list causes a ChildrenChanged event; a znode that does not
        exist gets no watch."""
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
                raise credential_error(self._address, self._auth_file)
            reason = _REASONS.get(type(result))
            if reason is None:
                raise unavailable_error(self._address, result)
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
        self._sync = None  # Later calls send a new sync: this one may miss writes before them.
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

    # Methods that run on the event loop's thread.

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
        """Send the waiting reads as a batch, then this request, through kazoo. Return the request's
        answer.

        Raises CoordinationUnavailableError without a connection, because kazoo would keep the
        request and send it later."""
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
                answer = self._call(MultiRead([read for read, _ in part]))
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

        Raises kazoo's error if ZooKeeper refuses the operation, and CoordinationUnavailableError
        for every other failure."""
        if not self._connected:
            raise unavailable_error(self._address, "the connection is lost")
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
            raise credential_error(self._address, self._auth_file) from None
        except KazooException as error:
            raise unavailable_error(self._address, error) from None
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
                future.set_exception(unavailable_error(self._address, "the connection was lost"))


_Read = tuple[Any, "asyncio.Future[Any]"]
"""A read request of kazoo, and the future that receives its answer."""


def _ignore(event: StoreEvent) -> None:
    """Drop events that arrive before ``start``."""
