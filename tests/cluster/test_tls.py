"""Test brokers with a TLS listener for clients, and a listener with certificates for brokers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
import trustme
from kafka import KafkaConsumer, KafkaProducer
from support.certificates import PemFiles, served_certificate, write_pem
from support.patience import until

from broker_lite.local.cluster import LocalCluster

TOPIC = "over-tls"


@pytest.fixture(scope="module")
def brokers_ca() -> trustme.CA:
    return trustme.CA(organization_name="brokers")


@pytest.fixture(scope="module")
def client_pem(tmp_path_factory: pytest.TempPathFactory) -> PemFiles:
    return write_pem(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, client_pem: PemFiles, brokers_ca: trustme.CA
) -> Iterator[LocalCluster]:
    between = write_pem(tmp_path_factory.mktemp("brokers"), ca=brokers_ca)
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
        "ssl.keystore.location": client_pem.certificate,
        "listener.name.brokers.ssl.keystore.location": between.certificate,
        "listener.name.brokers.ssl.truststore.location": between.ca,
        "listener.name.brokers.ssl.client.auth": "required",
        "login.timeout.ms": "1000",
    }
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(3, directory=folder, config=settings) as cluster:
        create_topic(cluster, client_pem)
        yield cluster


def librdkafka(cluster: LocalCluster, pem: PemFiles, **options: object) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "ssl",
        "ssl.ca.location": pem.ca,
        "ssl.endpoint.identification.algorithm": "https",
        **options,
    }


def create_topic(cluster: LocalCluster, pem: PemFiles) -> None:
    admin = confluent_kafka.admin.AdminClient(librdkafka(cluster, pem))
    new = confluent_kafka.admin.NewTopic(TOPIC, num_partitions=3, replication_factor=3)
    for created in admin.create_topics([new]).values():
        created.result(30)


def produce(cluster: LocalCluster, pem: PemFiles, values: list[bytes]) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(librdkafka(cluster, pem, acks="all"))
    for value in values:
        producer.produce(
            TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not failures


def test_librdkafka_and_kafka_python_exchange_replicated_records(
    secured: LocalCluster, client_pem: PemFiles
) -> None:
    """The clients use acks=all, so the followers must fetch over the listener that requires
    certificates."""
    sent = {f"record {number} ".encode() * 1000 for number in range(500)}
    produce(secured, client_pem, sorted(sent))
    python = {
        "bootstrap_servers": secured.bootstrap_servers.split(","),
        "security_protocol": "SSL",
        "ssl_cafile": client_pem.ca,
    }
    producer = KafkaProducer(acks="all", **python)
    producer.send(TOPIC, b"from kafka-python").get(30)
    producer.close()
    consumer = KafkaConsumer(TOPIC, auto_offset_reset="earliest", **python)
    found: set[bytes] = set()

    def read() -> bool:
        for records in consumer.poll(1000).values():
            found.update(record.value for record in records)
        return found >= sent | {b"from kafka-python"}

    until(read)
    consumer.close()


def test_listener_for_brokers_refuses_clients_without_a_broker_certificate(
    secured: LocalCluster, client_pem: PemFiles
) -> None:
    admin = confluent_kafka.admin.AdminClient(librdkafka(secured, client_pem))
    resource = confluent_kafka.admin.ConfigResource("BROKER", "0")
    [described] = admin.describe_configs([resource]).values()
    listeners = described.result(30)["advertised.listeners"].value
    address = dict(row.split("://") for row in listeners.split(","))["BROKERS"]
    foreign = librdkafka(
        secured,
        client_pem,
        **{
            "bootstrap.servers": address,
            "ssl.certificate.location": client_pem.certificate,
            "ssl.key.location": client_pem.certificate,
            "enable.ssl.certificate.verification": False,
        },
    )
    stranger = confluent_kafka.admin.AdminClient(foreign)
    with pytest.raises(confluent_kafka.KafkaException):
        stranger.list_topics(timeout=3)


def test_unfinished_tls_handshakes_time_out_without_delaying_other_clients(
    secured: LocalCluster, client_pem: PemFiles
) -> None:
    host, port = secured.bootstrap_servers.split(",")[0].split(":")
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(200)
        ]
        for sock in slow:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        produce(secured, client_pem, [b"meanwhile"] * 10)
        for sock in slow:
            sock.settimeout(30)
            assert sock.recv(1) == b""


def test_certificates_can_be_replaced_under_load_without_a_failed_send(
    secured: LocalCluster, client_pem: PemFiles
) -> None:
    endpoint = secured.brokers[0].endpoint
    before = served_certificate(endpoint)
    stop, failures = threading.Event(), []

    def load() -> None:
        try:
            while not stop.is_set():
                produce(secured, client_pem, [b"x" * 100] * 50)
        except AssertionError as error:
            failures.append(error)

    sending = threading.Thread(target=load)
    sending.start()
    folder = Path(client_pem.certificate).parent
    renewed = write_pem(folder / "new")
    Path(renewed.certificate).replace(client_pem.certificate)
    for broker in secured.brokers:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
    until(lambda: served_certificate(endpoint) != before)
    Path(client_pem.certificate).write_text("no certificate")
    for broker in secured.brokers:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
    produce(secured, client_pem, [b"the previous certificate stays in use"])
    stop.set()
    sending.join()
    assert not failures
