"""kazoo's client as logbus uses it: address and credential, fast reconnects, TLS, errors."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.retry import KazooRetry

from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError
from broker_lite.metadata.zookeeper.tls import ZooKeeperTls, handshake_failure

_kazoo_log = logging.getLogger(f"{__package__}.kazoo")
# kazoo warns at every attempt to reconnect; ``server/cluster/registry.py`` logs the loss once.
_kazoo_log.setLevel(logging.ERROR)

_RECONNECT_DELAY_S = 0.05
_RECONNECT_DELAY_MAX_S = 0.2
"""Maximum seconds between attempts to reconnect. kazoo's default of a minute would delay the
recovery of the cluster after an outage of ZooKeeper."""
_HANDSHAKE_S = 0.5
"""Seconds to wait for ZooKeeper's first answer on a new connection. Each retry doubles the wait."""


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
    """Return the credentials in the file that ``zookeeper.auth.file`` names: a line
    ``name:password``, or two while a credential is rotated. Raises InvalidConfigError, whose
    message contains no credential."""
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


def kazoo_client(
    hosts: str, timeout_s: float, auth: Sequence[str] = (), tls: ZooKeeperTls | None = None
) -> KazooClient:
    """Return a client, not yet started, of the ZooKeeper servers ``hosts``. ``timeout_s`` is the
    session timeout to request, ``auth`` the credentials."""
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


@contextlib.contextmanager
def connected(
    address: str, timeout_s: float, auth: Sequence[str] = (), tls: ZooKeeperTls | None = None
) -> Iterator[tuple[KazooClient, str]]:
    """Open a ZooKeeper connection for blocking calls. Yield the kazoo client and the chroot."""
    hosts, chroot = split_address(address)
    client = kazoo_client(hosts, timeout_s, auth, tls)
    try:
        client.start(timeout=timeout_s)
        yield client, chroot
    except NoAuthError:
        raise credential_error(address, "") from None
    except (KazooException, KazooTimeoutError) as error:
        raise unavailable_error(address, tls_failure(client) or error) from None
    finally:
        client.stop()
        client.close()


def children(client: KazooClient, path: str) -> list[str]:
    """Return the sorted names of a znode's children; [] if the znode does not exist."""
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection handler with TLS. ``select`` also returns a socket whose decrypted bytes
    wait in memory, because the operating system cannot report these."""

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


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """A kazoo connection that repeats its unanswered first request long before the session timeout.

    A starting ZooKeeper sometimes never answers the first request. ``session_timeout_ms`` is the
    timeout that ZooKeeper granted or, before the first connection, the requested one."""

    def __init__(self, client: KazooClient, *arguments: Any, **options: Any) -> None:
        super().__init__(client, *arguments, **options)
        self.session_timeout_ms: int = client._session_timeout
        self._handshake_s = _HANDSHAKE_S

    def _connect(self, *address: Any) -> Any:
        read_timeout_ms, connect_timeout_ms = super()._connect(*address)
        # kazoo returns only its read timeout, two thirds of the session timeout, so compute the
        # latter.
        self.session_timeout_ms = round(read_timeout_ms * 3 / 2)
        return read_timeout_ms, connect_timeout_ms

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        wait_s = min(timeout, self._handshake_s)
        self._handshake_s *= 2
        answer = super()._invoke(wait_s, request, xid)
        self._handshake_s = _HANDSHAKE_S
        return answer


def tls_failure(client: KazooClient) -> str:
    """Return why the client's last TLS handshake failed; "" if it succeeded or without TLS."""
    return getattr(client.handler, "failure", "")


def credential_error(address: str, auth_file: str) -> InvalidConfigError:
    """Return the error for a client without the credential that owns a cluster's znodes. Its own
    credential is in ``auth_file``; "" if it has none."""
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


def unavailable_error(address: str, cause: object) -> CoordinationUnavailableError:
    """Return the error for a ZooKeeper that does not answer."""
    text = str(cause) or type(cause).__name__
    return CoordinationUnavailableError(
        f"ZooKeeper at {address} does not answer ({text}); is it running?"
    )
