"""Three brokers with logins over TLS for clients, and certificates of another CA between brokers.

Own clients and librdkafka exchange records. Each mistake of a client has an error that names the
setting to change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import confluent_kafka.admin
import pytest
import trustme

from broker_lite.bus import aconnect, connect
from broker_lite.cli.main import run as logbus
from broker_lite.client.client_config import take_security
from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.transport.blocking import Pool
from broker_lite.client.transport.loop import LoopShell
from broker_lite.client.transport.steps import CallExchange, Operation, Send
from broker_lite.errors import LogbusError, SaslAuthenticationError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import Endpoint
from broker_lite.wire.calls.cluster import MetadataRequest
from tests.certificates import PemFiles, authority, write_pem
from tests.patience import until

pytestmark = pytest.mark.real

PASSWORD = "wonder land"


class Secured(NamedTuple):
    """A running cluster and the files of its clients."""

    cluster: LocalCluster
    pem: PemFiles
    folder: Path

    def login(self, **changes: str) -> dict[str, str]:
        """Return the options of ``connect`` for alice, over TLS."""
        options = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "alice",
            "sasl_password": PASSWORD,
            "ssl_ca_location": self.pem.ca,
        }
        return {name: value for name, value in (options | changes).items() if value}

    def address(self, listener: str) -> str:
        """Return the address of broker 0's listener of this name."""
        options = {key.replace("_", "."): value for key, value in self.login().items()}
        servers = self.cluster.bootstrap_servers
        admin = confluent_kafka.admin.AdminClient(options | {"bootstrap.servers": servers})
        resource = confluent_kafka.admin.ConfigResource("BROKER", "0")
        [described] = admin.describe_configs([resource]).values()
        listeners = described.result(30)["advertised.listeners"].value
        return dict(row.split("://") for row in listeners.split(","))[listener]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    pem = write_pem(folder / "clients")
    between = write_pem(folder / "brokers", ca=trustme.CA(organization_name="brokers"))
    for_another_host = write_pem(folder / "elsewhere", "elsewhere.example")
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0,PLAIN://127.0.0.1:0,"
        "CERTIFIED://127.0.0.1:0,ELSEWHERE://127.0.0.1:0",
        "advertised.listeners": "ELSEWHERE://elsewhere.example:0",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL,PLAIN:PLAINTEXT,"
        "CERTIFIED:SSL,ELSEWHERE:SASL_SSL",
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.location": pem.certificate,
        "listener.name.brokers.ssl.keystore.location": between.certificate,
        "listener.name.brokers.ssl.truststore.location": between.ca,
        "listener.name.brokers.ssl.client.auth": "required",
        "listener.name.certified.ssl.truststore.location": pem.ca,
        "listener.name.certified.ssl.client.auth": "required",
        "listener.name.elsewhere.ssl.keystore.location": for_another_host.certificate,
    }
    with LocalCluster(3, directory=folder / "cluster", config=settings) as cluster:
        password = folder / "password"
        password.write_text(PASSWORD + "\n", "utf-8")
        first = ["--first", "--zookeeper", cluster.zookeeper, "--mechanism", "SCRAM-SHA-512"]
        assert logbus(["user", "add", "alice", "--password-file", str(password), *first]) == 0
        found = Secured(cluster, pem, folder)
        until(lambda: can_log_in(found))
        yield found


def can_log_in(secured: Secured) -> bool:
    """Return whether every broker knows alice."""
    try:
        for address in secured.cluster.bootstrap_servers.split(","):
            connect(address, **secured.login()).close()
    except LogbusError:
        return False
    return True


def test_own_clients_and_librdkafka_exchange_replicated_records(secured: Secured) -> None:
    servers = secured.cluster.bootstrap_servers
    with connect(servers, **secured.login()) as bus:
        bus.create_topic(
            "t", partitions=3, replication_factor=3, config={"min.insync.replicas": "2"}
        )
        with bus.producer() as producer:
            large = b"x" * 300_000
            sent = [producer.send("t", value=large, key=str(each)) for each in range(30)]
            assert {each.result(60).topic for each in sent} == {"t"}
        options = {key.replace("_", "."): value for key, value in secured.login().items()}
        theirs = confluent_kafka.Producer({"bootstrap.servers": servers, **options})
        failures: list[object] = []
        theirs.produce("t", b"theirs", on_delivery=lambda error, _: failures.append(error))
        assert theirs.flush(30) == 0
        assert failures == [None]
        with bus.consumer("t", start="earliest", group="g", local_reads=False) as consumer:
            records = iter(consumer)
            values = [next(records).value for _ in range(31)]
        assert sorted(len(value or b"") for value in values) == [6] + [300_000] * 30


def test_asyncio_clients_log_in_over_tls(secured: Secured) -> None:
    async def exchange() -> bytes | None:
        servers = secured.cluster.bootstrap_servers
        bus = await aconnect(servers, **secured.login())
        try:
            await bus.create_topic("asynchronous", partitions=1)
            async with bus.producer() as producer:
                await producer.send("asynchronous", value=b"hello")
            async with bus.consumer("asynchronous", start="earliest", group="a") as consumer:
                async for record in consumer:
                    return record.value
        finally:
            await bus.close()
        return None

    assert asyncio.run(exchange()) == b"hello"


def test_file_of_client_settings_can_be_named(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "client.conf"
    rows = {key.replace("_", "."): value for key, value in secured.login().items()}
    file.write_text("".join(f"{key}={value}\n" for key, value in rows.items()), "utf-8")
    file.chmod(0o600)
    servers = secured.cluster.bootstrap_servers
    connect(servers, client_config=file).close()
    with pytest.raises(LogbusError, match="refused the login of user 'alice'"):
        connect(servers, client_config=file, sasl_password="other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl_password": "wrong"}, "password is wrong .* no such user.*Check sasl.username"),
        ({"sasl_username": "nobody"}, "password is wrong .* no such user.*Check sasl.username"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "not take .*SCRAM-SHA-256; it takes SCRAM-SHA-512"),
        ({"security_protocol": "PLAINTEXT", "sasl_mechanism": "", "sasl_username": "",
          "sasl_password": "", "ssl_ca_location": ""}, "set security.protocol"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_ca_location": ""}, "set security.protocol"),
        ({"security_protocol": "SSL", "sasl_mechanism": "", "sasl_username": "",
          "sasl_password": ""}, "demands a login, set security.protocol=SASL_SSL"),
        ({"ssl_ca_location": "foreign"}, "did not sign the broker's certificate.*ssl.ca.location"),
        ({"ssl_ca_location": ""}, "did not sign the broker's certificate.*ssl.ca.location"),
    ],
)  # fmt: skip
def test_mistake_of_a_client_names_the_setting_to_change(
    secured: Secured, changes: dict[str, str], message: str
) -> None:
    if changes.get("ssl_ca_location") == "foreign":
        foreign = write_pem(secured.folder / "foreign", ca=trustme.CA())
        changes = {**changes, "ssl_ca_location": foreign.ca}
    check_refusal(secured.cluster.bootstrap_servers, secured.login(**changes), message)


def check_refusal(servers: str, options: dict[str, str], message: str) -> None:
    """Check that both shells of the client raise an error of this message."""
    security, _ = take_security(options)
    ask = Send(parse_endpoints(servers)[0], CallExchange(MetadataRequest(())), 10_000)

    def operation() -> Operation[Any]:
        return (yield ask)

    async def on_a_loop() -> None:
        shell = LoopShell("tests", security)
        try:
            await shell.run(operation())
        finally:
            shell.close()

    with pytest.raises(LogbusError, match=message):
        Pool("tests", security).run(operation())
    with pytest.raises(LogbusError, match=message):
        asyncio.run(on_a_loop())


def test_refused_login_ends_a_clients_first_contact(secured: Secured) -> None:
    servers = secured.cluster.bootstrap_servers
    with pytest.raises(SaslAuthenticationError):
        connect(servers, **secured.login(sasl_password="wrong"))
    with pytest.raises(SaslAuthenticationError):
        asyncio.run(aconnect(servers, **secured.login(sasl_password="wrong")))


def test_tls_on_a_plaintext_port_names_the_protocol(secured: Secured) -> None:
    address = secured.address("PLAIN")
    check_refusal(address, secured.login(), "security.protocol=PLAINTEXT")
    options = secured.login(security_protocol="SASL_PLAINTEXT", ssl_ca_location="")
    check_refusal(address, options, "takes no logins; set security.protocol=PLAINTEXT")


def test_certificate_for_another_host_is_named(secured: Secured) -> None:
    port = secured.address("ELSEWHERE").rpartition(":")[2]
    check_refusal(f"127.0.0.1:{port}", secured.login(), "is not for 127.0.0.1")
    security, _ = take_security(secured.login(ssl_endpoint_identification_algorithm="none"))
    ask = Send(Endpoint("127.0.0.1", int(port)), CallExchange(MetadataRequest(())))
    assert "elsewhere.example" in {each.host for each in Pool("tests", security).ask(ask).brokers}


@pytest.mark.parametrize("fault", ["none", "expired", "foreign"])
def test_unusable_client_certificate_is_named(secured: Secured, fault: str) -> None:
    options = {"security_protocol": "SSL", "ssl_ca_location": secured.pem.ca}
    if fault != "none":
        ca = trustme.CA() if fault == "foreign" else authority()
        made = write_pem(secured.folder / fault, ca=ca, expired=fault == "expired")
        options["ssl_certificate_location"] = made.certificate
    check_refusal(secured.address("CERTIFIED"), options, "refused the client certificate")
