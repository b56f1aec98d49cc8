"""Test brokers that connect to ZooKeeper over TLS and protect their znodes with ACLs."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from support.patience import until

from broker_lite.bus import connect
from broker_lite.cli.main import run as logbus
from broker_lite.cli.zookeeper import TlsOptions
from broker_lite.config import BrokerConfig
from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError, LogbusError
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_jars, find_java, free_port
from broker_lite.metadata.zookeeper.store import ZooKeeperStore
from broker_lite.metadata.zookeeper.tls import ZooKeeperTls, tls_of
from broker_lite.metadata.zookeeper.znode_acls import close_znodes

pytestmark = pytest.mark.real

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"


class Encrypted(NamedTuple):
    """A ZooKeeper with TLS on ``address`` and plain text on ``plain_port``; its clients' TLS
    settings and credentials.

    The TLS port requires client certificates.
    """

    address: str
    plain_port: int
    tls: ZooKeeperTls
    auth_file: Path
    folder: Path


def write_certificate(ca: trustme.CA, path: Path, *hosts: str) -> str:
    """Write a certificate chain and its key as PKCS 8, the key format that ZooKeeper reads."""
    leaf = ca.issue_cert(*hosts)
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
    path.write_bytes(text + chain)
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("zookeeper")
    ca = trustme.CA()
    trusted = folder / "ca.pem"
    ca.cert_pem.write_to_path(str(trusted))
    server = write_certificate(ca, folder / "server.pem", "localhost")
    broker = write_certificate(ca, folder / "broker.pem", "broker")
    port, plain_port = free_port(), free_port()
    settings = {
        "dataDir": folder / "data",
        "clientPort": plain_port,
        "secureClientPort": port,
        "tickTime": 500,
        "maxSessionTimeout": 60_000,
        "admin.enableServer": "false",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": server,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": trusted,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    config = folder / "zookeeper.cfg"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    auth_file = folder / "auth"
    auth_file.write_text("brokers:canary-secret\n")
    auth_file.chmod(0o600)
    command = [find_java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{find_jars()}/*"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, MAIN, str(config)], stdout=log, stderr=log)
    try:
        made = Encrypted(
            f"localhost:{port}/logbus", plain_port, ZooKeeperTls(str(trusted), broker), auth_file,
            folder,
        )  # fmt: skip
        until(lambda: process.poll() is not None or serves(made))
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield made
    finally:
        process.kill()
        process.wait()


def serves(encrypted: Encrypted) -> bool:
    try:
        close_znodes(encrypted.address, encrypted.auth_file, {}, tls=encrypted.tls)
    except CoordinationUnavailableError:
        return False
    return True


def test_brokers_use_tls_and_acls_for_their_metadata_in_zookeeper(encrypted: Encrypted) -> None:
    settings = {
        "zookeeper.auth.file": str(encrypted.auth_file),
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": encrypted.tls.truststore,
        "zookeeper.ssl.keystore.location": encrypted.tls.keystore,
    }
    folder = encrypted.folder / "cluster"
    with (
        LocalCluster(2, directory=folder, zookeeper=encrypted.address, config=settings) as running,
        connect(running.bootstrap_servers) as bus,
    ):
        # Create so many partitions that some responses of ZooKeeper exceed one TLS record.
        for number in range(30):
            bus.create_topic(f"t-{number}", partitions=10)
        running.brokers[0].stop()
        running.brokers[0].start()
        with bus.producer() as producer:
            assert producer.send("t-0", b"hello", partition=0).result(60).offset == 0
        assert len(bus.topics()) == 30
    password = encrypted.folder / "password"
    password.write_text("of alice")
    first = ["--first", "--zookeeper", encrypted.address, "--password-file", str(password)]
    files = ["--zookeeper-ca", encrypted.tls.truststore]
    files += ["--zookeeper-certificate", encrypted.tls.keystore]
    auth = ["--zookeeper-auth-file", str(encrypted.auth_file)]
    assert logbus(["user", "add", "alice", *first, *files, *auth]) == 0
    secure = ["--zookeeper", encrypted.address, "--auth-file", str(encrypted.auth_file)]
    assert logbus(["zookeeper", "secure", *secure, *files, "--yes"]) == 0
    client = KazooClient(hosts=f"localhost:{encrypted.plain_port}")
    client.start()
    try:
        with pytest.raises(NoAuthError):
            client.get_children("/logbus")
        client.add_auth("digest", "brokers:canary-secret")
        assert "credentials" in client.get_children("/logbus")
    finally:
        client.stop()
        client.close()


def test_znode_that_an_open_client_creates_while_znodes_are_closed_is_closed_too(
    encrypted: Encrypted,
) -> None:
    """Regression: ``logbus zookeeper secure`` left such a znode open, and reported success."""
    client = KazooClient(hosts=f"localhost:{encrypted.plain_port}")
    client.start()
    begun, ended = threading.Event(), threading.Event()

    def create() -> None:
        try:
            for number in itertools.count():
                client.create(f"/closing/a/{number}", makepath=not number)
                begun.set()
        except NoAuthError:
            ended.set()

    try:
        for number in range(300):
            client.create(f"/closing/z/{number}", makepath=not number)
        thread = threading.Thread(target=create)
        thread.start()
        assert begun.wait(60)
        address = encrypted.address.replace("/logbus", "/closing")
        count = close_znodes(address, encrypted.auth_file, {}, tls=encrypted.tls)
        thread.join(60)
        assert ended.is_set()
        client.add_auth("digest", "brokers:canary-secret")
        paths = [f"/closing/a/{name}" for name in client.get_children("/closing/a")]
        assert count == 303 + len(paths) > 303
        schemes = {acl.id.scheme for path in paths for acl in client.get_acls(path)[0]}
        assert schemes and "world" not in schemes
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    "words",
    [
        ["zookeeper", "secure", "--yes", "--auth-file"],
        ["user", "add", "alice", "--first", "--password-file"],
    ],
)
def test_command_sends_no_secret_to_a_remote_zookeeper_without_tls(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: the commands sent the brokers' credential in plain text."""
    file = tmp_path / "secret"
    file.write_text("brokers:canary-secret\n")
    file.chmod(0o600)
    where = ["--zookeeper", "127.0.0.1:1,zk.invalid:2181/logbus"]
    assert logbus([*words, str(file), *where]) == 1
    said = capsys.readouterr().err
    assert "--zookeeper names zk.invalid" in said and "--zookeeper-ca FILE" in said
    assert TlsOptions(None, None, insecure=True).for_address("zk.invalid:2181") is None


def test_local_secured_cluster_sends_its_credential_to_zookeeper_only_over_tls(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    """Regression: ``logbus up --secure --zookeeper`` sent the new credential in plain text."""
    remote = LocalCluster(1, directory=tmp_path / "a", secure=True, zookeeper="zk.invalid:1/logbus")
    with pytest.raises(InvalidConfigError, match=r"names zk\.invalid, and the credential"):
        remote.start()
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": encrypted.tls.truststore,
        "zookeeper.ssl.keystore.location": encrypted.tls.keystore,
    }
    address = encrypted.address.replace("/logbus", "/own")
    with (
        LocalCluster(
            1, directory=tmp_path / "b", secure=True, zookeeper=address, config=settings
        ) as running,
        connect(running.bootstrap_servers, client_config=running.client_config) as bus,
    ):
        bus.create_topic("t", partitions=1)
        assert bus.topics() == ["t"]


def refusal(address: str, tls: ZooKeeperTls | None) -> LogbusError:
    """Try to connect to ZooKeeper; return the error."""

    async def run() -> None:
        store = ZooKeeperStore(address, session_timeout_ms=6000, connect_timeout_ms=1500, tls=tls)
        await store.start(lambda _: None)

    with pytest.raises(LogbusError) as refused:
        asyncio.run(run())
    return refused.value


def test_error_of_a_failed_tls_handshake_names_the_setting_to_change(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.pem"
    trustme.CA().cert_pem.write_to_path(str(foreign))
    address, tls = encrypted.address, encrypted.tls
    said = str(refusal(address, tls._replace(truststore=str(foreign))))
    assert "certificate is refused" in said and "zookeeper.ssl.truststore.location" in said
    said = str(refusal(address.replace("localhost", "127.0.0.1"), tls))
    assert "certificate is refused" in said and "host in the certificate" in said
    said = str(refusal(f"localhost:{encrypted.plain_port}/logbus", tls))
    assert "secureClientPort" in said and "zookeeper.ssl.client.enable=false" in said
    said = str(refusal(address, None))
    assert "zookeeper.ssl.client.enable=true" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zookeeper_ssl": True}, "needs zookeeper.ssl.truststore.location"),
        ({"zookeeper_ssl": True, "zookeeper_ssl_truststore": "/absent"}, "/absent"),
        ({"zookeeper_ssl_truststore": "/ca.pem"}, "without zookeeper.ssl.client.enable=true"),
        (
            {"zookeeper_auth_file": "/auth", "zookeeper_connect": "127.0.0.1:1,zk2:2181/logbus"},
            "names zk2.*zookeeper.insecure.allow=true",
        ),
        (
            {"authorizer": "enforce", "zookeeper_connect": "zk:2181/logbus"},
            "names zk, and the ACLs of authorizer=enforce.*zookeeper.ssl.client.enable=true",
        ),
        (
            {"sasl_enabled_mechanisms": "SCRAM-SHA-256", "zookeeper_connect": "zk:2181/logbus"},
            "names zk, and the users of sasl.enabled.mechanisms.*zookeeper.insecure.allow=true",
        ),
    ],
)
def test_contradicting_zookeeper_tls_settings_are_refused(
    settings: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        tls_of(BrokerConfig(**settings))


@pytest.mark.parametrize(
    "secured",
    [
        {"zookeeper_auth_file": "/auth"},
        {"authorizer": "report"},
        {"sasl_enabled_mechanisms": "SCRAM-SHA-256"},
    ],
)
def test_secured_broker_needs_a_setting_that_allows_zookeeper_without_tls(
    secured: dict[str, str],
) -> None:
    settings = {**secured, "zookeeper_connect": "zk:2181/logbus"}
    assert tls_of(BrokerConfig(**settings, zookeeper_insecure_allow=True)) is None
    assert tls_of(BrokerConfig(**settings | {"zookeeper_connect": "[::1]:2181"})) is None
    assert tls_of(BrokerConfig(zookeeper_connect="zk:2181/logbus")) is None
