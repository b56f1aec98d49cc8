"""Test unchanged clients authorized as the user whom their certificate names (mutual TLS)."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
from support.client_programs import Note
from support.java_tools import CONSUMER, PRODUCER, Tools

from broker_lite.local.cluster import LocalCluster
from broker_lite.local.issuing import BROKERS, CLIENTS, CertificateFolder

pytestmark = pytest.mark.real

ASKED = "SSL with a client certificate: a record, written and read"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates of broker 0, of alice and of bob, as from ``logbus
    cert``."""
    made = CertificateFolder(tmp_path_factory.mktemp("certificates"))
    now = datetime.datetime.now(datetime.UTC)
    for ca in (CLIENTS, BROKERS):
        made.certify(ca, "broker-0", ["127.0.0.1"], now)
    for user in ("alice", "bob"):
        made.certify(CLIENTS, user, (), now)
    return made.folder


@pytest.fixture(scope="module")
def certified(
    certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Start a broker whose authorizer permits only requests of alice."""
    between = {
        "ssl.keystore.location": str(certificates / "broker-0-brokers.pem"),
        "ssl.truststore.location": str(certificates / "brokers-ca.pem"),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(broker-[0-9]+)$/$1/",
    }
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
        "ssl.keystore.location": str(certificates / "broker-0-clients.pem"),
        "ssl.truststore.location": str(certificates / "clients-ca.pem"),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
        "authorizer": "enforce",
        "super.users": "User:alice",
        **{f"listener.name.brokers.{key}": value for key, value in between.items()},
    }
    folder = tmp_path_factory.mktemp("certified")
    with LocalCluster(1, directory=folder, config=settings) as running:
        yield running


def librdkafka(certified: LocalCluster, certificates: Path, user: str) -> dict[str, str]:
    own = str(certificates / f"{user}-clients.pem")
    return {
        "bootstrap.servers": certified.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / "clients-ca.pem"),
        "ssl.certificate.location": own,
        "ssl.key.location": own,
    }


def create(options: dict[str, str], topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient(options)
    [created] = admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1)]).values()
    created.result(30)


def test_librdkafka_client_is_identified_by_its_certificate(
    certified: LocalCluster, certificates: Path, answered: Note, versions: dict[str, str]
) -> None:
    alice = librdkafka(certified, certificates, "alice")
    create(alice, "t")
    producer = confluent_kafka.Producer(alice)
    producer.produce("t", b"hello")
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**alice, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    [message] = consumer.consume(1, 30)
    consumer.close()
    assert message.value() == b"hello"
    with pytest.raises(confluent_kafka.KafkaException, match="AUTHORIZATION_FAILED"):
        create(librdkafka(certified, certificates, "bob"), "of-bob")
    answered(versions["librdkafka"], ASKED, "served")


@pytest.mark.compat
@pytest.mark.timeout(400)
def test_java_client_is_identified_by_its_certificate(
    certified: LocalCluster,
    certificates: Path,
    class_path: str,
    tmp_path: Path,
    answered: Note,
    versions: dict[str, str],
) -> None:
    create(librdkafka(certified, certificates, "alice"), "java")

    def tools(user: str) -> Tools:
        settings = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates / "clients-ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": certificates / f"{user}-clients.pem",
        }
        file = tmp_path / f"{user}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return Tools(class_path, certified.bootstrap_servers, str(file))

    tools("alice")(PRODUCER, "--topic", "java", stdin="hello\n")
    read = ("--topic", "java", "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    tools("alice")(CONSUMER, *read, says="hello")
    tools("bob")(PRODUCER, "--topic", "java", stdin="no\n", says="AuthorizationException")
    answered(versions["java"], ASKED, "served")
