"""Tests of TLS listeners: accepted certificates, reloaded files, and the errors that clients
see."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import shutil
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from support.certificates import PemFiles, served_certificate, write_pem

from broker_lite.client.transport.pool import Pool
from broker_lite.client.transport.steps import CallExchange, Send
from broker_lite.config import DAY, BrokerConfig, parse
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import (
    InvalidConfigError,
    LogbusError,
    NetworkError,
    ProtocolError,
    TlsError,
)
from broker_lite.model import Endpoint
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.network import listener as listener_module
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.listener import Listener
from broker_lite.wire.calls.groups import FindCoordinatorRequest

ASK = CallExchange(FindCoordinatorRequest("g"))


def listener(pem: PemFiles | None, **settings: str) -> Listener:
    tls = {"listeners": "SSL://127.0.0.1:0"}
    if pem is not None:
        tls["ssl.keystore.location"] = pem.certificate
    keys = {key.replace("_", "."): value for key, value in settings.items()}
    return Listener(parse(BrokerConfig, tls | keys), clock=Clock(), metrics=Metrics())


def serve(one: Listener, attack: Callable[[Endpoint], Awaitable[None]]) -> list[ResponseSlot]:
    """Run the coroutine function ``attack`` against the listener.

    Return the requests that arrived; each gets an empty response.
    """
    begun: list[ResponseSlot] = []

    def begin(frame: memoryview, reply: ResponseSlot) -> None:
        begun.append(reply)
        reply.answer([b"\0\0\0\4" + frame[4:8]])

    async def main() -> None:
        one.start(asyncio.get_running_loop(), begin)
        try:
            await asyncio.wait_for(attack(one.bound), 20)
        finally:
            one.close()

    asyncio.run(main())
    return begun


def ask(one: Listener, security: ClientSecurity) -> tuple[LogbusError | None, list[ResponseSlot]]:
    """Send a request; return the client's error, if any, and the requests that reached the
    broker."""
    errors: list[LogbusError] = []

    async def attack(endpoint: Endpoint) -> None:
        pool = Pool("test", security)
        try:
            await asyncio.to_thread(pool.ask, Send(endpoint, ASK))
        except LogbusError as error:
            errors.append(error)

    begun = serve(one, attack)
    return (errors[0] if errors else None), begun


def trusting(pem: PemFiles, **settings: object) -> ClientSecurity:
    return ClientSecurity("SSL", ca_location=pem.ca, **settings)  # type: ignore[arg-type]


def test_client_certificate_sets_the_principal(tmp_path: Path) -> None:
    server = write_pem(tmp_path / "server")
    client = write_pem(tmp_path / "client", "host", common_name="alice")
    rules = "RULE:.*CN=([a-z]+).*/$1/"
    one = listener(
        server,
        ssl_client_auth="required",
        ssl_truststore_location=client.ca,
        ssl_principal_mapping_rules=rules,
    )
    _, [request] = ask(one, trusting(server, certificate_location=client.certificate))
    assert request.session.principal == "User:alice"
    assert (
        request.session.listener == "SSL" and request.session.certificate_ends_ms > Clock().now_ms()
    )


def test_client_without_certificate_is_anonymous_where_none_is_required(tmp_path: Path) -> None:
    server = write_pem(tmp_path)
    _, [request] = ask(listener(server), trusting(server))
    assert request.session.principal == "User:ANONYMOUS"


def test_client_error_names_the_missing_client_certificate(tmp_path: Path) -> None:
    server = write_pem(tmp_path)
    one = listener(server, ssl_client_auth="required", ssl_truststore_location=server.ca)
    error, begun = ask(one, trusting(server))
    assert not begun and isinstance(error, TlsError)
    assert "refused the client certificate (none is set)" in error.message
    assert "ssl.certificate.location" in error.message


def test_client_error_names_a_client_certificate_of_another_ca(tmp_path: Path) -> None:
    server = write_pem(tmp_path / "server")
    client = write_pem(tmp_path / "client", ca=trustme.CA())
    one = listener(server, ssl_client_auth="required", ssl_truststore_location=server.ca)
    error, begun = ask(one, trusting(server, certificate_location=client.certificate))
    assert not begun and isinstance(error, TlsError)
    assert f"refused the client certificate {client.certificate}" in error.message


def test_client_refuses_a_broker_certificate_of_an_unknown_ca(tmp_path: Path) -> None:
    server = write_pem(tmp_path / "server")
    other = write_pem(tmp_path / "other", ca=trustme.CA())
    error, begun = ask(listener(server), trusting(other))
    assert not begun and isinstance(error, TlsError)
    assert f"{other.ca} did not sign the broker's certificate" in error.message
    assert "set ssl.ca.location" in error.message


def test_client_refuses_a_broker_certificate_for_another_host(tmp_path: Path) -> None:
    server = write_pem(tmp_path, "other.example")
    advertised = "SSL://other.example:0"
    error, begun = ask(listener(server, advertised_listeners=advertised), trusting(server))
    assert not begun and isinstance(error, TlsError)
    assert "the broker's certificate is not for 127.0.0.1" in error.message
    one = listener(server, advertised_listeners=advertised)
    _, begun = ask(one, trusting(server, checks_host_name=False))
    assert begun


def test_error_of_a_tls_client_at_a_plaintext_listener_names_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = listener(None, listeners="PLAINTEXT://127.0.0.1:0")
    with caplog.at_level(logging.DEBUG):
        error, begun = ask(one, trusting(write_pem(tmp_path)))
    assert not begun and isinstance(error, NetworkError)
    assert "if its listener is PLAINTEXT, set security.protocol=PLAINTEXT" in error.message
    assert "the peer speaks TLS, but this connection does not" in caplog.text


def test_tls_listener_logs_which_setting_a_plaintext_client_must_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error, begun = ask(listener(write_pem(tmp_path)), ClientSecurity())
    assert not begun and isinstance(error, ProtocolError | NetworkError)
    assert "the client does not speak TLS; set security.protocol=SSL" in caplog.text


def test_http_request_at_a_tls_listener_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def attack(address: Endpoint) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")
        await reader.read()
        writer.close()

    assert serve(listener(write_pem(tmp_path)), attack) == []
    assert "an HTTP request to a TLS listener of Kafka's protocol" in caplog.text


def test_plaintext_client_does_not_read_a_tls_alert_as_a_frame_length() -> None:
    """A Kafka client that read the alert's bytes as a length would allocate 352,518,912 bytes
    (KIP-498)."""
    alert = b"\x15\x03\x03\x00\x02\x02\x46"

    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4)
            writer.write(alert)

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            endpoint = Endpoint(*server.sockets[0].getsockname()[:2])
            with pytest.raises(ProtocolError, match=r"speaks TLS.*security\.protocol"):
                await asyncio.to_thread(Pool("test").ask, Send(endpoint, ASK))

    asyncio.run(main())


def test_tls_handshakes_beyond_the_limit_are_closed_and_slow_ones_time_out(tmp_path: Path) -> None:
    one = listener(write_pem(tmp_path), connections_before_login_max="2", login_timeout_ms="200")

    async def attack(endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        socks = [socket.socket() for _ in range(3)]
        for sock in socks:
            sock.setblocking(False)
            await loop.sock_connect(sock, tuple(endpoint))
            await loop.sock_sendall(sock, b"\x16\x03\x01")
        for sock in socks:
            assert await loop.sock_recv(sock, 1) == b""
            sock.close()

    assert not serve(one, attack)


def test_more_stalled_tls_handshakes_than_allowed_do_not_block_another_clients_login(
    tmp_path: Path,
) -> None:
    pem = write_pem(tmp_path)
    one = listener(
        pem,
        listeners="SASL_SSL://127.0.0.1:0",
        sasl_enabled_mechanisms="SCRAM-SHA-256",
        inter_broker_client_config="unread",
        connections_before_login_max="4",
    )

    async def attack(endpoint: Endpoint) -> None:
        async def stall(count: int, *, refused: int) -> list[socket.socket]:
            """Open ``count`` connections that send nothing. Wait until the listener has refused
            ``refused`` connections in all.
            """
            socks = [socket.create_connection(tuple(endpoint)) for _ in range(count)]
            while one._metrics.value("connections_refused", "handshake") < refused:
                await asyncio.sleep(0.01)
            return socks

        before = await stall(6, refused=2)
        context = ssl.create_default_context(cafile=pem.ca)
        plain = socket.create_connection(tuple(endpoint))
        client = await asyncio.to_thread(context.wrap_socket, plain, server_hostname="127.0.0.1")
        after = await stall(2, refused=5)
        assert await asyncio.to_thread(answers, client)
        for sock in (client, *before, *after):
            sock.close()

    assert len(serve(one, attack)) == 1


def test_broker_can_connect_although_clients_have_reached_max_connections(
    tmp_path: Path,
) -> None:
    clients = write_pem(tmp_path / "clients")
    brokers = write_pem(tmp_path / "brokers", ca=trustme.CA())
    one = listener(
        clients,
        listeners="CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:SSL,BROKERS:SSL",
        inter_broker_listener_name="BROKERS",
        max_connections="1",
        listener_name_brokers_ssl_keystore_location=brokers.certificate,
        listener_name_brokers_ssl_truststore_location=brokers.ca,
        listener_name_brokers_ssl_client_auth="required",
    )

    def connect(port: int, pem: PemFiles) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=pem.ca)
        context.load_cert_chain(brokers.certificate)
        plain = socket.create_connection(("127.0.0.1", port))
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    async def attack(endpoint: Endpoint) -> None:
        client = await asyncio.to_thread(connect, endpoint.port, clients)
        assert await asyncio.to_thread(answers, client)
        with pytest.raises(OSError):
            await asyncio.to_thread(connect, endpoint.port, clients)
        broker = await asyncio.to_thread(connect, one.endpoint.port, brokers)
        assert await asyncio.to_thread(answers, broker)
        for sock in (client, broker):
            sock.close()

    assert len(serve(one, attack)) == 2


def test_connections_per_ip_limit_counts_clients_in_their_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_limited", lambda peer: peer.rpartition(":")[0])
    pem = write_pem(tmp_path)
    one = listener(pem, max_connections_per_ip="2")
    context = ssl.create_default_context(cafile=pem.ca)

    async def attack(endpoint: Endpoint) -> None:
        socks = [socket.create_connection(tuple(endpoint)) for _ in range(4)]
        while one._handshakes is None or len(one._handshakes) < len(socks):
            await asyncio.sleep(0.01)

        def complete(sock: socket.socket) -> ssl.SSLSocket:
            return context.wrap_socket(sock, server_hostname="127.0.0.1")

        wrapped = [await asyncio.to_thread(complete, sock) for sock in socks]
        found = [await asyncio.to_thread(answers, sock) for sock in wrapped]
        assert found == [True, True, False, False]
        for sock in wrapped:
            sock.close()
        assert one._metrics.value("connections_refused", "max_connections_per_ip") == 2

    assert len(serve(one, attack)) == 2


def test_client_with_tls_1_2_can_connect_only_if_ssl_enabled_protocols_allows_it(
    tmp_path: Path,
) -> None:
    server = write_pem(tmp_path)

    def versions(one: Listener) -> list[str | None]:
        found: list[str | None] = []

        def connect(endpoint: Endpoint) -> None:
            context = ssl.create_default_context(cafile=server.ca)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            try:
                with (
                    socket.create_connection(endpoint) as sock,
                    context.wrap_socket(sock, server_hostname="127.0.0.1") as wrapped,
                ):
                    found.append(wrapped.version())
            except ssl.SSLError:
                found.append(None)

        async def attack(endpoint: Endpoint) -> None:
            await asyncio.to_thread(connect, endpoint)

        serve(one, attack)
        return found

    assert versions(listener(server)) == [None]
    assert versions(listener(server, ssl_enabled_protocols="TLSv1.2,TLSv1.3")) == ["TLSv1.2"]


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_listener_with_client_certificates_issues_no_session_ticket(
    tmp_path: Path, client_auth: str
) -> None:
    """A client that resumes a session by a ticket would skip the check of its certificate."""
    server, client = write_pem(tmp_path / "server"), write_pem(tmp_path / "client")
    one = listener(server, ssl_client_auth=client_auth, ssl_truststore_location=client.ca)
    tickets: list[bool] = []

    def connect(endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=server.ca)
        context.load_cert_chain(client.certificate)
        with (
            socket.create_connection(endpoint) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as wrapped,
        ):
            # In TLS 1.3, session tickets arrive before the first response.
            wrapped.sendall(b"\0\0\0\x08" + bytes(8))
            assert wrapped.recv(1) == b"\0"
            session = wrapped.session
            tickets.append(session is not None and session.has_ticket)

    async def attack(endpoint: Endpoint) -> None:
        await asyncio.to_thread(connect, endpoint)

    serve(one, attack)
    assert tickets == [client_auth == "none"]


def test_broker_does_not_start_with_unusable_certificate_files(tmp_path: Path) -> None:
    one, two = write_pem(tmp_path / "1"), write_pem(tmp_path / "2")
    expired = write_pem(tmp_path / "3", expired=True)
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("")
    for pem, settings, message in (
        (expired, {}, rf"{expired.certificate}: the certificate expired on 2020-01-02"),
        (PemFiles("", str(nothing)), {}, "no PEM certificate"),
        (PemFiles("", "/absent.pem"), {}, "No such file"),
        (one, {"ssl_key_location": two.certificate}, "not the key of the certificate"),
        (one, {"advertised_listeners": "SSL://b.example:1"}, "not for the advertised host b.exa"),
        (
            one,
            {"ssl_client_auth": "required", "ssl_truststore_location": str(nothing)},
            "ssl.truststore.location=.*has no PEM certificate",
        ),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            listener(pem, **settings)


def test_broker_does_not_start_if_client_certificates_may_be_signed_by_the_ca_of_brokers(
    tmp_path: Path,
) -> None:
    pem, of_clients = write_pem(tmp_path / "1"), write_pem(tmp_path / "2", ca=trustme.CA()).ca
    both = tmp_path / "both.pem"
    both.write_bytes(Path(of_clients).read_bytes() + Path(pem.ca).read_bytes())
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": "CLIENTS:SSL,BROKERS:SSL",
        "inter_broker_listener_name": "BROKERS",
        "ssl_client_auth": "required",
        "listener_name_brokers_ssl_truststore_location": pem.ca,
    }
    with pytest.raises(InvalidConfigError, match="BROKERS and CLIENTS trust the same CA"):
        listener(pem, **settings, ssl_truststore_location=str(both))
    listener(pem, **settings, ssl_truststore_location=of_clients).close()


def test_broker_does_not_start_with_a_certificate_that_other_brokers_would_refuse(
    tmp_path: Path,
) -> None:
    own, other = write_pem(tmp_path / "1"), write_pem(tmp_path / "2", ca=trustme.CA())
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": "CLIENTS:SSL,BROKERS:SSL",
        "inter_broker_listener_name": "BROKERS",
        "listener_name_brokers_ssl_client_auth": "required",
    }
    truststore = "listener_name_brokers_ssl_truststore_location"
    with pytest.raises(InvalidConfigError) as refused:
        listener(own, **settings, **{truststore: other.ca})
    for part in ("other brokers would refuse the certificate", own.certificate, other.ca):
        assert part in str(refused.value)
    listener(own, **settings, **{truststore: own.ca}).close()


@pytest.mark.parametrize("is_combined", [True, False])
def test_broker_does_not_start_with_a_private_key_that_other_users_may_read(
    tmp_path: Path, is_combined: bool
) -> None:
    pem = write_pem(tmp_path)
    key = Path(pem.certificate)
    settings = {}
    if not is_combined:
        key = tmp_path / "key.pem"
        key.write_bytes(Path(pem.certificate).read_bytes())
        settings["ssl_key_location"] = str(key)
    key.chmod(0o640)
    listener(pem, **settings).close()
    key.chmod(0o644)
    with pytest.raises(InvalidConfigError, match=rf"chmod 600 {key}"):
        listener(pem, **settings)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"listener_security_protocol_map": "SSL:PLAINTEXT"}, "TLS, logins, authorizer=enforce"),
        ({"authorizer": "enforce"}, "without logins"),
        ({"ssl_client_auth": "required"}, "without authorizer=enforce"),
        ({"ssl_client_auth": "requested", "authorizer": "enforce"}, "without logins"),
        ({"ssl_client_auth": "required", "authorizer": "report"}, "without authorizer=enforce"),
        ({"ssl_client_auth": "required", "authorizer": "enforce"}, "inter.broker.listener.name"),
        (
            {
                "listener_security_protocol_map": "SSL:SASL_SSL",
                "sasl_enabled_mechanisms": "SCRAM-SHA-256",
                "inter_broker_client_config": "unread",
                "authorizer": "enforce",
            },
            "",
        ),
    ],
)
def test_listener_off_loopback_needs_tls_logins_and_authorizer(
    tmp_path: Path, settings: dict[str, str], missing: str
) -> None:
    """192.0.2.1 is no address of this machine, so binding fails even where the settings are
    accepted."""
    pem = write_pem(tmp_path, "192.0.2.1")
    trusted = {"ssl_truststore_location": pem.ca} if "ssl_client_auth" in settings else {}
    with pytest.raises(InvalidConfigError) as refused:
        listener(pem, listeners="SSL://192.0.2.1:0", **trusted, **settings)
    assert (missing in str(refused.value)) if missing else ("without" not in str(refused.value))
    assert ("listeners.insecure.allow" in str(refused.value)) == bool(missing)


def test_certificate_that_expires_soon_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = listener(write_pem(tmp_path / "late", days=40))
    soon = write_pem(tmp_path / "soon", days=20)

    async def attack(endpoint: Endpoint) -> None:
        served.reload()
        served.reload()

    with caplog.at_level(logging.WARNING, "logbus.tls"):
        serve(served, attack)
        assert not caplog.records
        served = listener(soon)
        serve(served, attack)
    [record] = caplog.records
    assert "ends in 19 days" in record.getMessage()
    assert soon.certificate in record.getMessage()


def test_listener_uses_changed_certificate_files_only_if_they_are_valid(
    tmp_path: Path,
) -> None:
    served = write_pem(tmp_path)
    one = listener(served)
    seen: list[bytes] = []

    def connect(endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=served.ca)
        with (
            socket.create_connection(endpoint) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as wrapped,
        ):
            seen.append(wrapped.getpeercert(binary_form=True) or b"")

    async def attack(endpoint: Endpoint) -> None:
        await asyncio.to_thread(connect, endpoint)
        os.replace(write_pem(tmp_path / "new").certificate, served.certificate)
        one.reload()
        await asyncio.to_thread(connect, endpoint)
        expired = write_pem(tmp_path / "old", expired=True)
        os.replace(expired.certificate, served.certificate)
        one.reload()
        await asyncio.to_thread(connect, endpoint)

    serve(one, attack)
    first, second, third = seen
    assert first != second == third


def test_listener_keeps_its_certificate_if_the_changed_key_is_not_the_key_of_the_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, other = write_pem(tmp_path / "served"), write_pem(tmp_path / "other")
    key = tmp_path / "key.pem"
    shutil.copy(served.certificate, key)
    one = listener(served, ssl_key_location=str(key))

    async def attack(endpoint: Endpoint) -> None:
        before = await asyncio.to_thread(served_certificate, str(endpoint))
        os.replace(other.certificate, key)
        one.reload()
        assert await asyncio.to_thread(served_certificate, str(endpoint)) == before

    serve(one, attack)
    assert "is not the key of the certificate" in caplog.text


def revocation_list(ca: trustme.CA, path: Path, *revoked: str, days: int = 1) -> None:
    """Write the CA's revocation list with the certificates in the files ``revoked``."""
    issuer = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    key = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - datetime.timedelta(days=30))
        .next_update(now + datetime.timedelta(days=days))
    )
    for pem in revoked:
        number = x509.load_pem_x509_certificate(Path(pem).read_bytes()).serial_number
        row = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        made = made.add_revoked_certificate(row)
    signed = made.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    new = path.with_suffix(".new")
    new.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    os.replace(new, path)


def connected(endpoint: Endpoint, server: PemFiles, client: PemFiles) -> ssl.SSLSocket:
    """Return a TLS connection of ``client`` on which one request was answered."""
    context = ssl.create_default_context(cafile=server.ca)
    context.load_cert_chain(client.certificate)
    sock = socket.create_connection(endpoint, 10)
    wrapped = context.wrap_socket(sock, server_hostname="127.0.0.1")
    assert answers(wrapped)
    return wrapped


def answers(sock: ssl.SSLSocket) -> bool:
    """Return whether the broker answers a request on the connection."""
    try:
        sock.sendall(b"\0\0\0\4ping")
        return bool(sock.recv(8))
    except OSError:
        return False


def test_connections_with_a_revoked_certificate_are_closed_and_refused(tmp_path: Path) -> None:
    server, ca = write_pem(tmp_path / "server"), trustme.CA()
    alice, bob = (write_pem(tmp_path / name, name, ca=ca) for name in ("alice", "bob"))
    revoked = tmp_path / "revoked.pem"
    revocation_list(ca, revoked)
    one = listener(
        server,
        ssl_client_auth="required",
        ssl_truststore_location=alice.ca,
        ssl_crl_location=str(revoked),
    )

    def run(endpoint: Endpoint) -> None:
        first, second = (connected(endpoint, server, client) for client in (alice, bob))
        revocation_list(ca, revoked, alice.certificate)
        one._loop.call_soon_threadsafe(one.reload)  # type: ignore[union-attr]
        while answers(first):
            pass
        assert answers(second)
        pool = Pool("test", trusting(server, certificate_location=alice.certificate))
        with pytest.raises(TlsError, match="refused the client certificate"):
            pool.ask(Send(endpoint, ASK))
        connected(endpoint, server, bob).close()
        for each in (first, second):
            each.close()

    async def attack(endpoint: Endpoint) -> None:
        await asyncio.to_thread(run, endpoint)

    serve(one, attack)


def test_connections_with_certificates_of_a_removed_ca_are_closed(tmp_path: Path) -> None:
    server, ca = write_pem(tmp_path / "server"), trustme.CA()
    alice, bob = write_pem(tmp_path / "alice", ca=ca), write_pem(tmp_path / "bob", ca=trustme.CA())
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Path(alice.ca).read_bytes() + Path(bob.ca).read_bytes())
    one = listener(server, ssl_client_auth="required", ssl_truststore_location=str(trusted))

    def run(endpoint: Endpoint) -> None:
        first, second = (connected(endpoint, server, client) for client in (alice, bob))
        os.replace(alice.ca, trusted)
        one._loop.call_soon_threadsafe(one.reload)  # type: ignore[union-attr]
        while answers(second):
            pass
        assert answers(first)
        for each in (first, second):
            each.close()

    async def attack(endpoint: Endpoint) -> None:
        await asyncio.to_thread(run, endpoint)

    serve(one, attack)


class Later(Clock):
    """A clock that is two days fast."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * DAY


@pytest.mark.parametrize(
    "protocol",
    [
        {},
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "sasl_enabled_mechanisms": "SCRAM-SHA-256",
            "inter_broker_client_config": "unread",
            "login_timeout_ms": "60000",
        },
    ],
    ids=["SSL", "SASL_SSL"],
)
def test_connection_is_closed_once_the_clients_certificate_has_expired(
    tmp_path: Path, protocol: dict[str, str]
) -> None:
    server = write_pem(tmp_path / "server", days=9)
    short, long = (write_pem(tmp_path / str(days), "client", days=days) for days in (1, 9))
    required = {"ssl_client_auth": "required", "ssl_truststore_location": short.ca}
    one = listener(server, **required, **protocol)

    def run(endpoint: Endpoint) -> None:
        ends, stays = (connected(endpoint, server, client) for client in (short, long))
        one._loop.call_soon_threadsafe(one._end_silent)  # type: ignore[union-attr]
        assert answers(ends)
        one._clock = Later()
        one._loop.call_soon_threadsafe(one._end_silent)  # type: ignore[union-attr]
        assert ends.recv(1) == b""
        assert answers(stays)
        for each in (ends, stays):
            each.close()

    async def attack(endpoint: Endpoint) -> None:
        await asyncio.to_thread(run, endpoint)

    serve(one, attack)


def test_client_whose_ca_is_removed_during_its_handshake_is_disconnected(tmp_path: Path) -> None:
    server, client = write_pem(tmp_path / "server"), write_pem(tmp_path / "client", ca=trustme.CA())
    one = listener(server, ssl_client_auth="required", ssl_truststore_location=client.ca)

    async def attack(endpoint: Endpoint) -> None:
        handshakes = one._handshakes
        assert handshakes is not None
        waiting = socket.create_connection(endpoint)
        while not len(handshakes):
            await asyncio.sleep(0.01)
        os.replace(write_pem(tmp_path / "other", ca=trustme.CA()).ca, client.ca)
        one.reload()

        def finish() -> bool:
            context = ssl.create_default_context(cafile=server.ca)
            context.load_cert_chain(client.certificate)
            with context.wrap_socket(waiting, server_hostname="127.0.0.1") as wrapped:
                return answers(wrapped)

        assert not await asyncio.to_thread(finish)

    assert serve(one, attack) == []


def test_reloaded_truststore_of_clients_may_not_contain_the_ca_of_brokers(tmp_path: Path) -> None:
    pem, clients = write_pem(tmp_path / "1"), write_pem(tmp_path / "2", ca=trustme.CA())
    of_brokers = tmp_path / "brokers.pem"
    of_brokers.write_bytes(Path(pem.ca).read_bytes())
    one = listener(
        pem,
        listeners="CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:SSL,BROKERS:SSL",
        inter_broker_listener_name="BROKERS",
        ssl_client_auth="required",
        ssl_truststore_location=clients.ca,
        listener_name_brokers_ssl_truststore_location=str(of_brokers),
    )

    async def attack(endpoint: Endpoint) -> None:
        before = one._inter_broker.tls.client_cas  # type: ignore[union-attr]
        samples = {each.metric.name: each.values for each in one._metrics.samples()}
        assert samples["certificate_reloads_failed"] == {("CLIENTS",): 0, ("BROKERS",): 0}
        os.replace(clients.ca, of_brokers)
        one.reload()
        assert one._inter_broker.tls.client_cas == before  # type: ignore[union-attr]
        assert one._metrics.value("certificate_reloads_failed", "BROKERS") == 1

    serve(one, attack)


def test_broker_does_not_start_with_an_unusable_revocation_list_or_folder_of_cas(
    tmp_path: Path,
) -> None:
    ca, path = trustme.CA(), tmp_path / "revoked.pem"
    pem = write_pem(tmp_path / "pem", ca=ca)
    settings = {"ssl_client_auth": "required", "ssl_truststore_location": pem.ca}
    revocation_list(ca, path, days=-1)
    for crl, message in (
        (path, r"revocation list of .* expired on"),
        (Path(pem.ca), "the file has no revocation list"),
        (tmp_path / "none", r"ssl\.crl\.location=.*/none: cannot be read: No such file"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            listener(pem, **settings, ssl_crl_location=str(crl))
    revocation_list(ca, path)
    path.write_bytes(path.read_bytes() + Path(pem.ca).read_bytes())
    extra = write_pem(tmp_path / "extra", ca=trustme.CA()).ca
    path.write_bytes(path.read_bytes() + Path(extra).read_bytes())
    with pytest.raises(InvalidConfigError, match="has certificates, which the listener would"):
        listener(pem, **settings, ssl_crl_location=str(path))
    folder = settings | {"ssl_truststore_location": str(tmp_path)}
    with pytest.raises(InvalidConfigError, match="this is a folder; name one PEM file"):
        listener(pem, **folder)


def test_login_timeout_includes_the_tls_handshake(tmp_path: Path) -> None:
    server = write_pem(tmp_path)
    one = listener(server)
    began: list[int] = []

    async def attack(endpoint: Endpoint) -> None:
        handshakes = one._handshakes
        assert handshakes is not None
        waiting = socket.create_connection(endpoint)
        while not len(handshakes):
            await asyncio.sleep(0.01)
        began.append(Clock().monotonic_ms())
        await asyncio.sleep(0.05)

        def finish() -> bool:
            context = ssl.create_default_context(cafile=server.ca)
            with context.wrap_socket(waiting, server_hostname="127.0.0.1") as wrapped:
                return answers(wrapped)

        assert await asyncio.to_thread(finish)

    [request] = serve(one, attack)
    assert request.session.opened_ms <= began[0]
