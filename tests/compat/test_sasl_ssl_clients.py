"""Test unchanged third-party clients that log in over TLS, write rows and read them in a group.

Debian's kcat and rsyslog log in with PLAIN alone: they are linked with a librdkafka that sends a
wrong SCRAM nonce, which logbus and Kafka 4 refuse.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from support.client_programs import NODE, Note, Steps
from support.log_shipper import FIRST_LINE, rsyslog_name, shipping
from support.member_process import eventually

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real

Record = Callable[[str, str], None]
ROWS = [b"row %d" % number for number in range(50)]
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
CLIENTS = (
    "librdkafka", "kafka-python", "aiokafka", "franz-go", "sarama", "old sarama", "kafkajs",
    "platformatic", "kcat", "rsyslog",
)  # fmt: skip


class Login(NamedTuple):
    """The brokers' addresses, the path of their CA, and a user's name and password."""

    servers: str
    ca: str
    user: str
    password: str

    def of_librdkafka(self, mechanism: str) -> dict[str, str]:
        """Return librdkafka's options for a login with this mechanism."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }


def topic_of(client: str, mechanism: str) -> str:
    return f"{client}-{mechanism}".replace(" ", "-")


def assert_program_reads_its_rows(
    command: list[str], client: str, login: Login, mechanism: str, folder: Path | None = None
) -> None:
    topic = topic_of(client, mechanism)
    given = [login.servers, topic, login.ca, login.user, login.password, mechanism]
    assert Steps([*command, *given], folder).answer("login") == [row.decode() for row in ROWS]


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> Record:
    """Return a function that records that a client read all rows after a login with a SASL
    mechanism."""
    return lambda client, mechanism: answered(
        versions[client], f"SASL_SSL with {mechanism}: {len(ROWS)} rows, read in a group", "served"
    )


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    config = {"sasl.enabled.mechanisms": ",".join(MECHANISMS)}
    folder = tmp_path_factory.mktemp("s") / "c"
    with LocalCluster(1, directory=folder, secure=True, config=config) as cluster:
        file = Path(str(cluster.client_config))
        rows = dict(line.split("=", 1) for line in file.read_text("utf-8").splitlines())
        with connect(cluster.bootstrap_servers, client_config=file) as bus:
            for client in CLIENTS:
                for mechanism in MECHANISMS:
                    bus.create_topic(topic_of(client, mechanism), partitions=1)
        yield Login(
            cluster.bootstrap_servers,
            rows["ssl.ca.location"],
            rows["sasl.username"],
            rows["sasl.password"],
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_over_tls(login: Login, mechanism: str, note: Record) -> None:
    topic = f"librdkafka-{mechanism}"
    options = {"bootstrap.servers": login.servers, **login.of_librdkafka(mechanism)}
    producer = confluent_kafka.Producer(options)
    for row in ROWS:
        producer.produce(topic, row)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer(
        {**options, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    while len(found) < len(ROWS):
        found += [message.value() for message in consumer.consume(len(ROWS), 1)]
    consumer.close()
    assert found == ROWS
    note("librdkafka", mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_over_tls(login: Login, mechanism: str, note: Record) -> None:
    topic = f"kafka-python-{mechanism}"
    options = {
        "bootstrap_servers": login.servers.split(","),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": login.ca,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
    }
    with kafka.KafkaProducer(**options) as producer:
        for row in ROWS:
            producer.send(topic, row)
        producer.flush(60)
    consumer = kafka.KafkaConsumer(
        topic, **options, group_id=topic, auto_offset_reset="earliest"
    )  # fmt: skip
    found = [next(consumer).value for _ in ROWS]
    consumer.close()
    assert found == ROWS
    note("kafka-python", mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in_over_tls(login: Login, mechanism: str, note: Record) -> None:
    topic = f"aiokafka-{mechanism}"

    async def exchange() -> list[bytes | None]:
        options = {
            "bootstrap_servers": login.servers,
            "security_protocol": "SASL_SSL",
            "ssl_context": create_ssl_context(cafile=login.ca),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
        async with AIOKafkaProducer(**options) as producer:
            for row in ROWS:
                await producer.send_and_wait(topic, row)
        async with AIOKafkaConsumer(
            topic, **options, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value for _ in ROWS]

    assert asyncio.run(asyncio.wait_for(exchange(), 90)) == ROWS
    note("aiokafka", mechanism)


@pytest.mark.compat
@pytest.mark.parametrize(
    ("client", "mechanism"),
    [*(("franz-go", each) for each in MECHANISMS), ("sarama", "PLAIN"), ("old sarama", "PLAIN")],
)
def test_go_client_logs_in_over_tls(
    login: Login, client: str, mechanism: str, go_program: Callable[[str], str], note: Record
) -> None:
    """sarama itself implements no SCRAM, so its program logs in with PLAIN only."""
    assert_program_reads_its_rows([go_program(client), "login"], client, login, mechanism)
    note(client, mechanism)


@pytest.mark.compat
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("client", "program"),
    [("kafkajs", "login.mjs"), ("platformatic", "platformatic-login.mjs")],
)
def test_node_client_logs_in_over_tls(
    login: Login, client: str, program: str, mechanism: str, node_folder: Path, note: Record
) -> None:
    command = ["node", str(NODE / program)]
    assert_program_reads_its_rows(command, client, login, mechanism, node_folder)
    note(client, mechanism)


@pytest.mark.compat
def test_rsyslog_logs_in_over_tls_with_plain(login: Login, tmp_path: Path, answered: Note) -> None:
    topic = topic_of("rsyslog", "PLAIN")
    options = login.of_librdkafka("PLAIN")
    lines = [row.decode() for row in ROWS]
    reader = confluent_kafka.Consumer(
        {**options, "bootstrap.servers": login.servers, "group.id": topic,
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    reader.subscribe([topic])
    found: list[str] = []

    def arrived(expected: list[str]) -> bool:
        messages = reader.consume(len(ROWS), 0.2)
        found.extend(json.loads(message.value() or b"")["m"] for message in messages)
        return found == expected

    with shipping(tmp_path / "rsyslog", login.servers, topic, options) as shipper:
        eventually(lambda: arrived([FIRST_LINE]), lambda: (found, shipper.said))
        shipper.append(lines)
        eventually(lambda: arrived([FIRST_LINE, *lines]), lambda: (found, shipper.said))
        assert not shipper.has_failed
    reader.close()
    answered(rsyslog_name(), "SASL_SSL with PLAIN: lines of a file", "served")


@pytest.fixture
def run_kcat(login: Login, kcat: str) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Return a function that runs kcat with a SASL mechanism, arguments and rows for stdin."""

    def run(mechanism: str, *arguments: str, rows: bytes = b"") -> Any:
        options = login.of_librdkafka(mechanism)
        given = [word for key, value in options.items() for word in ("-X", f"{key}={value}")]
        command = [kcat, "-b", login.servers, *given, *arguments]
        return subprocess.run(command, input=rows, capture_output=True, timeout=90, check=False)

    return run


def test_kcat_logs_in_over_tls_with_plain(
    run_kcat: Callable[..., subprocess.CompletedProcess[bytes]], note: Record
) -> None:
    """Regression: kcat could not log in at all, because the broker did not advertise version 0 of
    SaslHandshake."""
    topic = topic_of("kcat", "PLAIN")
    assert run_kcat("PLAIN", "-P", "-t", topic, rows=b"\n".join(ROWS) + b"\n").returncode == 0
    group = ("-G", topic, "-e", "-X", "auto.offset.reset=earliest", "-c", str(len(ROWS)), topic)
    assert run_kcat("PLAIN", *group).stdout.splitlines() == ROWS
    note("kcat", "PLAIN")


def test_scram_login_of_kcat_with_a_wrong_nonce_is_refused_as_by_kafka_4(
    run_kcat: Callable[..., subprocess.CompletedProcess[bytes]],
    versions: dict[str, str],
    answered: Note,
) -> None:
    refused = run_kcat("SCRAM-SHA-256", "-L")
    assert refused.returncode != 0 and b"the login failed" in refused.stderr
    answered(versions["kcat"], "SASL_SSL with SCRAM: a wrong nonce", "refused, as by Kafka 4")
