"""Tests of the broker's HTTP port for metrics and probes, over sockets on loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.certificates import PemFiles, authority, write_pem

from broker_lite.config import BrokerConfig, parse
from broker_lite.config.listeners import metrics_listener
from broker_lite.errors import InvalidConfigError
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import ScramCredential, derive_keys
from broker_lite.server import http
from broker_lite.server.audit import AuditLog
from broker_lite.server.clock import Clock
from broker_lite.server.exposition import Exposition
from broker_lite.server.http import HttpServer
from broker_lite.server.http_login import HttpLogin
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.access import Authorizer
from broker_lite.server.network.logins import Logins
from broker_lite.server.network.tls_listener import ListenerTls

Ask = Callable[[bytes], Awaitable[bytes]]


def run(
    test: Callable[[Ask], Awaitable[None]],
    *reasons: str,
    host: str = "127.0.0.1",
    login: Any = None,
    context: ssl.SSLContext | None = None,
) -> None:
    async def main() -> None:
        server = HttpServer(Exposition(Metrics()), lambda: list(reasons), login)
        port = await server.start(host, 0)

        async def ask(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(request)
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

        await test(ask)
        await server.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def get(path: str, *headers: str, name: str = "127.0.0.1:9644") -> bytes:
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"GET {path} HTTP/1.1\r\nHost: {name}\r\n{lines}\r\n".encode()


def test_http_port_serves_metrics_liveness_and_readiness() -> None:
    async def test(ask: Ask) -> None:
        metrics = await ask(get("/metrics?name[]=x"))
        assert metrics.startswith(b"HTTP/1.1 200") and b"logbus_loop_rule_violations" in metrics
        assert (await ask(get("/livez"))).endswith(b"\r\n\r\nok\n")
        assert (await ask(get("/readyz"))).endswith(b'{"ready": true, "reasons": []}\n')
        assert (await ask(get("/secret"))).startswith(b"HTTP/1.1 404")
        assert (await ask(b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 405")
        head = await ask(b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")

    run(test)


def test_readiness_probe_names_the_reasons_why_the_broker_is_not_ready() -> None:
    async def test(ask: Ask) -> None:
        answer = await ask(get("/readyz"))
        assert answer.startswith(b"HTTP/1.1 503") and b'["draining"]' in answer

    run(test, "draining")


def test_http_port_that_other_machines_reach_hides_metrics_and_readiness_reasons() -> None:
    async def test(ask: Ask) -> None:
        answer = await ask(get("/metrics"))
        assert answer.startswith(b"HTTP/1.1 403") and b"metrics.listener.name" in answer
        answer = await ask(get("/readyz"))
        assert answer.startswith(b"HTTP/1.1 503") and b"draining" not in answer

    run(test, "draining", host="0.0.0.0")


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000],
)
def test_malformed_http_request_ends_the_connection(request_bytes: bytes) -> None:
    async def test(ask: Ask) -> None:
        assert await ask(request_bytes + b"\r\n\r\n") == b""
        assert (await ask(get("/livez"))).startswith(b"HTTP/1.1 200")

    run(test)


def test_silent_http_client_is_closed_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.2)

    async def test(ask: Ask) -> None:
        assert await ask(b"GET /livez HTTP/1.1\r\n") == b""

    run(test)


def test_http_connection_beyond_the_limit_replaces_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: silent connections reached the limit and made health checks fail. Kubernetes
    then restarts the broker."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)

    async def test(ask: Ask) -> None:
        silent = [asyncio.create_task(ask(b"GET /livez HTTP/1.1\r\n")) for _ in range(2)]
        done, waiting = await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == len(waiting) == 1
        assert (await ask(get("/livez"))).startswith(b"HTTP/1.1 200")
        assert await asyncio.gather(*silent) == [b"", b""]

    run(test)


def test_new_https_client_replaces_an_idle_client_at_the_connection_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS, closing a connection waits for the client, up to half a minute."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    pem = write_pem(tmp_path)
    context = trusting(pem)

    async def main() -> None:
        server = HttpServer(Exposition(Metrics()), list, login(secured(pem)))
        port = await server.start("127.0.0.1", 0)

        def answered() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", port))
            sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
            sock.sendall(get("/livez"))
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            return sock

        first = await asyncio.to_thread(answered)
        second = await asyncio.to_thread(answered)
        raw = socket.socket(fileno=first.detach())
        raw.settimeout(10)

        def ends() -> bool:
            with contextlib.suppress(ConnectionError):
                while raw.recv(1000):
                    pass
            return True

        assert await asyncio.to_thread(ends)
        raw.close()
        second.close()
        await server.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_metrics_request_with_a_foreign_host_name_is_refused() -> None:
    async def test(ask: Ask) -> None:
        for name in ("localhost", "127.0.0.1:9644", "[::1]:9644"):
            assert (await ask(get("/metrics", name=name))).startswith(b"HTTP/1.1 200")
        assert (await ask(get("/metrics", name="evil.example:9644"))).startswith(b"HTTP/1.1 403")
        assert (await ask(get("/readyz", name="bus1"))).startswith(b"HTTP/1.1 200")

    run(test)


def secured(pem: PemFiles, **settings: str) -> BrokerConfig:
    fixed = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SSL",
        "ssl.keystore.location": pem.certificate,
        "ssl.truststore.location": pem.ca,
        "ssl.client.auth": "required",
        "authorizer": "enforce",
        "super.users": "User:alice;User:CN=scraper",
        "metrics.listener.name": "clients",
    }
    return parse(BrokerConfig, fixed | {k.replace("_", "."): v for k, v in settings.items()})


def login(config: BrokerConfig) -> HttpLogin:
    """Return the object that checks HTTP logins at a broker. The broker has the users alice, a
    super user, and bob.
    """
    listener = metrics_listener(config)
    assert listener is not None
    salt = b"0123456789abcdef"

    def credential(password: str) -> dict[ScramMechanism, ScramCredential]:
        pair = derive_keys(ScramMechanism.SHA_256, password, salt, 4096).pair()
        return {ScramMechanism.SHA_256: ScramCredential(salt, 4096, (pair,))}

    users = {name: credential(f"of {name}") for name in ("alice", "bob")}
    parts: Any = SimpleNamespace(
        logins=Logins(("SCRAM-SHA-256",), users=lambda: users, salt_key=b"k"),
        authorizer=Authorizer(config),
        audit=AuditLog(),
        metrics=Metrics(),
    )
    return HttpLogin(lambda: parts, ListenerTls(listener, "", clock=Clock()))


def trusting(pem: PemFiles, own: PemFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pem.ca)
    if own is not None:
        context.load_cert_chain(own.certificate)
    return context


def basic(text: str) -> str:
    return f"Authorization: Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((basic("alice:of alice"),), 200),
        ((basic("alice:wrong"),), 401),
        ((basic("nobody:of alice"),), 401),
        ((basic("alice"),), 401),
        (("Authorization: Basic %%%",), 401),
        (("Authorization: Bearer x",), 401),
        ((), 401),
        ((basic("bob:of bob"),), 403),
    ],
)
def test_metrics_on_a_public_address_require_permission_to_describe_the_cluster(
    tmp_path: Path, headers: tuple[str, ...], status: int
) -> None:
    pem = write_pem(tmp_path)

    async def test(ask: Ask) -> None:
        answer = await ask(get("/metrics", *headers, name="bus1"))
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert (b"WWW-Authenticate: Basic" in answer) is (status == 401)
        assert (b"logbus_" in answer) is (status == 200)
        assert (await ask(get("/readyz"))).startswith(b"HTTP/1.1 200"), "probes need no login"

    run(test, host="0.0.0.0", login=login(secured(pem)), context=trusting(pem))


def test_starting_broker_with_tls_answers_probes_but_refuses_metrics(tmp_path: Path) -> None:
    pem = write_pem(tmp_path)
    starting = HttpLogin(lambda: None, login(secured(pem)).tls)

    async def test(ask: Ask) -> None:
        assert (await ask(get("/livez"))).startswith(b"HTTP/1.1 200")
        assert (await ask(get("/readyz"))).startswith(b"HTTP/1.1 503")
        answer = await ask(get("/metrics", basic("alice:of alice")))
        assert answer.startswith(b"HTTP/1.1 503") and b"try again later" in answer

    run(test, "recovering", login=starting, context=trusting(pem))


@pytest.mark.parametrize(("name", "status"), [("scraper", 200), ("someone", 403)])
def test_metrics_request_logs_in_with_a_client_certificate(
    tmp_path: Path, name: str, status: int
) -> None:
    pem = write_pem(tmp_path / "broker")
    own = write_pem(tmp_path / "client", common_name=name)
    config = secured(pem, ssl_principal_mapping_rules="RULE:^.*CN=([a-z]+).*$/CN=$1/")

    async def test(ask: Ask) -> None:
        assert (await ask(get("/metrics"))).startswith(b"HTTP/1.1 %d" % status)

    run(test, login=login(config), context=trusting(pem, own))


def test_changed_certificate_is_used_for_new_https_connections(tmp_path: Path) -> None:
    pem = write_pem(tmp_path / "old")
    one = login(secured(pem))
    new = write_pem(tmp_path / "new", ca=authority("another"))

    async def test(ask: Ask) -> None:
        os.replace(new.certificate, pem.certificate)
        assert one.tls.reload()
        assert (await ask(get("/livez"))).startswith(b"HTTP/1.1 200")

    run(test, login=one, context=trusting(new))


def test_metrics_listener_without_tls_is_refused(tmp_path: Path) -> None:
    pem = write_pem(tmp_path)
    plain = {"listener_security_protocol_map": "CLIENTS:PLAINTEXT"}
    for settings in ({"metrics_listener_name": "OTHER"}, plain):
        with pytest.raises(InvalidConfigError, match="has no listener of this name with TLS"):
            metrics_listener(secured(pem, **settings))
    assert metrics_listener(BrokerConfig()) is None


def test_kernel_receives_few_bytes_for_the_http_port_at_once() -> None:
    """Regression: asyncio decrypted up to 256 KiB, thousands of TLS records of one byte, in one
    iteration of the broker's event loop."""

    async def main() -> None:
        server = HttpServer(Exposition(Metrics()), list)
        port = await server.start("127.0.0.1", 0)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent += client.send(bytes(1024))
            assert sent <= 4 * http.REQUEST_BYTES_MAX
        await server.close()

    asyncio.run(main())
