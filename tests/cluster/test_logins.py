"""Log in to a real broker: clients of other projects, the command line, deleted users."""

from __future__ import annotations

import re
import select
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import kafka.protocol.sasl as kafka_sasl
import pytest
from confluent_kafka.admin import AdminClient
from support.patience import until
from support.plain_connection import PlainConnection

from broker_lite.bus import connect
from broker_lite.cli.main import run as logbus
from broker_lite.errors import LogbusError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import ScramClient
from broker_lite.wire.api import decode_call, encode_call
from broker_lite.wire.calls.cluster import ApiVersionsRequest, MetadataRequest
from broker_lite.wire.calls.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

pytestmark = pytest.mark.real
BOTH = "SCRAM-SHA-256,SCRAM-SHA-512"


@pytest.fixture
def secured(make_cluster: Callable[..., LocalCluster], tmp_path: Path) -> LocalCluster:
    """Start one broker that requires logins, and add the user alice."""
    settings = {
        "sasl.enabled.mechanisms": BOTH,
        "inter.broker.client.config": str(broker_file(tmp_path)),
        "broker.principals": "User:broker",
        "metrics.port": "0",
    }
    running = make_cluster(1, config=settings)
    add_user(running, tmp_path, "alice", "wonder land")
    logged_in(running.bootstrap_servers, "alice", "wonder land").close()
    return running


def broker_file(folder: Path) -> Path:
    """Write the client settings with which brokers log in as the user ``broker``."""
    file = folder / "broker.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=broker\nsasl.password=between brokers\n",
        "utf-8",
    )
    file.chmod(0o600)
    return file


def add_user(cluster: LocalCluster, folder: Path, name: str, password: str) -> None:
    file = folder / f"{name}.password"
    file.write_text(password + "\n", "utf-8")
    arguments = ["--password-file", str(file), "--first", "--zookeeper", cluster.zookeeper]
    assert logbus(["user", "add", name, *arguments]) == 0


def logged_in(address: str, user: str, password: str) -> PlainConnection:
    """Return a logged-in connection; retry until the broker knows a user that was just added."""
    for attempt in range(100):
        connection = PlainConnection(address)
        code = log_in(connection, user, password)
        if not code:
            return connection
        assert code == 58, attempt
        connection.close()
    raise AssertionError(f"{user} cannot log in")


def log_in(connection: PlainConnection, user: str, password: str) -> int:
    """Log in; return the error code of the last response."""
    client = ScramClient(ScramMechanism.SHA_256, user, password, "client-nonce")
    assert connection.call(SaslHandshakeRequest("SCRAM-SHA-256")).error_code == 0
    first = connection.call(SaslAuthenticateRequest(client.first()))
    assert first.error_code == 0
    last = connection.call(SaslAuthenticateRequest(client.final(first.auth_bytes)))
    if not last.error_code:
        client.verify(last.auth_bytes)
    return last.error_code


def librdkafka(cluster: LocalCluster, user: str, password: str, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password,
    }  # fmt: skip


def test_clients_log_in_and_get_the_same_error_for_a_wrong_user_and_a_wrong_password(
    secured: LocalCluster,
) -> None:
    logged_in(secured.bootstrap_servers, "alice", "wonder land").close()
    for mechanism in BOTH.split(","):
        admin = AdminClient(librdkafka(secured, "alice", "wonder land", mechanism))
        assert len(admin.list_topics(timeout=20).brokers) == 1
    options = {
        "bootstrap_servers": secured.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "alice",
    }  # fmt: skip
    theirs = kafka.KafkaAdminClient(sasl_plain_password="wonder land", **options)
    assert theirs.list_topics() == []
    theirs.close()
    errors: list[int] = []
    wrong = librdkafka(secured, "alice", "wrong", "SCRAM-SHA-256")
    refused = AdminClient({**wrong, "error_cb": lambda error: errors.append(error.code())})
    while confluent_kafka.KafkaError._AUTHENTICATION not in errors:
        refused.poll(0.1)
    del refused
    failures = []
    for user, password in (("alice", "wrong"), ("nobody", "wonder land")):
        connection = PlainConnection(secured.bootstrap_servers)
        began = time.monotonic()
        failures.append(log_in(connection, user, password))
        assert time.monotonic() - began >= 0.1
        connection.close()
    assert failures == [58, 58]
    url = f"http://127.0.0.1:{secured.brokers[0].metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        (line,) = re.findall(rb"^logbus_authentication_failures_total\{.*$", answer.read(), re.M)
    assert b'{mechanism="SCRAM-SHA-256"} ' in line and float(line.rpartition(b" ")[2]) >= 3


def test_logbus_clients_log_in_with_a_settings_file(
    secured: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
    file.write_text(f'{text}{module} required username="alice" password="wonder land";\n', "utf-8")
    servers = secured.bootstrap_servers
    assert logbus(["user", "list", "-b", servers, "-F", str(file)]) == 1
    assert f"chmod 600 {file}" in capfd.readouterr().err
    file.chmod(0o600)
    assert logbus(["user", "list", "-b", servers, "-F", str(file)]) == 0
    assert "alice" in capfd.readouterr().out
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    with connect(servers) as bus:
        bus.create_topic("t", partitions=1)
        with bus.producer() as producer:
            assert producer.send("t", value=b"hello").result(30).offset == 0
        with bus.consumer("t", start="earliest", group="g") as consumer:
            assert next(iter(consumer)).value == b"hello"
    file.write_text(f'{text}{module} required username="alice" password="wrong";\n', "utf-8")
    with pytest.raises(LogbusError, match="refused the login of user 'alice'") as refused:
        connect(servers)
    assert "wrong" not in str(refused.value).replace("the password is wrong", "")


def test_brokers_log_in_to_one_another(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = broker_file(tmp_path)
    settings = {
        "sasl.enabled.mechanisms": BOTH,
        "inter.broker.client.config": str(file),
        "broker.principals": "User:broker",
    }
    running = make_cluster(2, config=settings)
    add_user(running, tmp_path, "broker", "between brokers")
    for address in running.bootstrap_servers.split(","):
        logged_in(address, "broker", "between brokers").close()
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    with connect(running.bootstrap_servers) as bus:
        bus.create_topic(
            "t", partitions=2, replication_factor=2, config={"min.insync.replicas": "2"}
        )
        with bus.producer() as producer:
            sent = [producer.send("t", value=b"hello", partition=each) for each in (0, 1)]
            assert [each.result(60).offset for each in sent] == [0, 0]


def test_broker_that_others_would_take_for_a_client_stops_before_it_opens_its_logs(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    settings = {
        "sasl.enabled.mechanisms": BOTH,
        "inter.broker.client.config": str(broker_file(tmp_path)),
        "broker.principals": "User:other",
    }
    with pytest.raises(LogbusError, match="broker 0 is 'User:broker' to the other brokers"):
        make_cluster(1, directory=tmp_path / "cluster", config=settings)
    assert not (tmp_path / "cluster" / "broker-0" / "data").exists()


def test_transaction_commits_on_a_single_broker_that_requires_logins(
    secured: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.properties"
    add_user(secured, tmp_path, "broker", "between brokers")
    logged_in(secured.bootstrap_servers, "broker", "between brokers").close()
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    with connect(secured.bootstrap_servers) as bus:
        bus.create_topic("t", partitions=1, replication_factor=1)
        with bus.producer(transactional_id="one") as producer:
            for value in (b"first", b"second"):
                producer.begin()
                producer.send("t", value=value)
                producer.commit()


def test_new_password_works_beside_the_former_one_after_a_rotation(
    secured: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, password = tmp_path / "client.properties", tmp_path / "new.password"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanisms=SCRAM-SHA-256\n"
        "sasl.username=alice\nsasl.password=wonder land\n",
        "utf-8",
    )
    file.chmod(0o600)
    password.write_text("looking glass\n", "utf-8")
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    rotate = ["user", "rotate", "alice", "-b", secured.bootstrap_servers]
    assert logbus([*rotate, "--password-file", str(password)]) == 0
    kept = logged_in(secured.bootstrap_servers, "alice", "wonder land")
    logged_in(secured.bootstrap_servers, "alice", "looking glass").close()
    assert kept.call(MetadataRequest(())).topics == ()
    kept.close()


def test_failed_reauthentication_ends_the_connection(secured: LocalCluster) -> None:
    connection = logged_in(secured.bootstrap_servers, "alice", "wonder land")
    assert connection.call(MetadataRequest(())).topics == ()
    assert log_in(connection, "alice", "wrong") == 58
    with pytest.raises((EOFError, ConnectionError)):
        connection.call(MetadataRequest(()))
    connection.close()


def test_no_request_except_those_of_the_login_is_answered_before_the_login(
    secured: LocalCluster,
) -> None:
    connection = PlainConnection(secured.bootstrap_servers)
    with pytest.raises(EOFError):
        connection.call(MetadataRequest(None))
    connection.close()
    (log,) = [broker.log for broker in secured.brokers]
    assert re.search(r"closed: a request before the login", log.read_text("utf-8"))


def test_client_that_never_logs_in_may_send_eight_requests(secured: LocalCluster) -> None:
    connection = PlainConnection(secured.bootstrap_servers)
    for _ in range(8):
        assert connection.call(ApiVersionsRequest("a", "1")).api_keys
    with pytest.raises((EOFError, ConnectionError)):
        connection.call(ApiVersionsRequest("a", "1"))


def test_only_responses_to_wrong_passwords_are_delayed(
    secured: LocalCluster,
) -> None:
    # Compute all proofs first: sending must be faster than the delay of this client's address.
    guesses = [ready_to_prove(secured.bootstrap_servers, "alice", "guess") for _ in range(24)]
    connection, right = ready_to_prove(secured.bootstrap_servers, "alice", "wonder land")
    began = time.monotonic()
    for guessing, proof in guesses:
        guessing.send(encode_call(SaslAuthenticateRequest(proof), 0, "tests"))
    assert connection.call(SaslAuthenticateRequest(right)).error_code == 0
    # The right password is answered already; the responses to the guesses are still delayed.
    answered = select.select([guessing for guessing, _ in guesses], [], [], 0)[0]
    assert len(answered) < len(guesses)
    for guessing, _ in guesses:
        answer = decode_call(SaslAuthenticateRequest(b""), guessing.receive())
        assert answer.error_code == 58
        guessing.close()
    assert time.monotonic() - began >= 5
    connection.close()


def ready_to_prove(address: str, user: str, password: str) -> tuple[PlainConnection, bytes]:
    """Return a connection in the middle of a SCRAM login, and the proof that it must send next."""
    client = ScramClient(ScramMechanism.SHA_256, user, password, "client-nonce")
    connection = PlainConnection(address)
    assert connection.call(SaslHandshakeRequest("SCRAM-SHA-256")).error_code == 0
    challenge = connection.call(SaslAuthenticateRequest(client.first()))
    return connection, client.final(challenge.auth_bytes)


def test_open_connections_of_a_deleted_user_are_closed(
    secured: LocalCluster, tmp_path: Path
) -> None:
    connection = logged_in(secured.bootstrap_servers, "alice", "wonder land")
    assert connection.call(MetadataRequest(())).topics == ()
    options = librdkafka(secured, "alice", "wonder land", "SCRAM-SHA-256")
    theirs = AdminClient(options)
    theirs.create_topics([confluent_kafka.admin.NewTopic("t", 1, 1)])["t"].result(30)
    errors: list[int] = []
    delivered: list[object] = []
    producer = confluent_kafka.Producer(
        {**options, "error_cb": lambda error: errors.append(error.code())}
    )
    producer.produce("t", b"before", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(30) == 0 and delivered == [None]
    deletion = confluent_kafka.admin.UserScramCredentialDeletion
    done = theirs.alter_user_scram_credentials(
        [
            deletion("alice", confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256),
            deletion("alice", confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512),
        ]
    )
    with pytest.raises(EOFError):
        connection.receive()
    assert set(done) == {"alice"}
    connection.close()

    def has_ended() -> bool:
        producer.poll(0.1)
        return confluent_kafka.KafkaError._AUTHENTICATION in errors

    until(has_ended)
    producer.produce("t", b"after", on_delivery=lambda error, _: delivered.append(error))
    producer.purge()
    assert producer.flush(30) == 0 and len(delivered) == 2 and delivered[1] is not None


def handshake_0(connection: PlainConnection, mechanism: str) -> None:
    answer = connection.call_library(
        kafka_sasl.SaslHandshakeRequest(mechanism=mechanism, version=0),
        kafka_sasl.SaslHandshakeResponse,
    )
    assert answer.error_code == 0 and mechanism in answer.mechanisms


def exchange_token(connection: PlainConnection, token: bytes) -> bytes:
    """Send a SASL message without Kafka's request header; return the broker's message."""
    connection.send(len(token).to_bytes(4, "big") + token)
    return bytes(connection.receive())


def test_client_older_than_kip_152_logs_in_with_sasl_messages_without_kafka_headers(
    secured: LocalCluster,
) -> None:
    """Clients before KIP-152 send the messages of a login as frames without headers (KIP-43)."""
    connection = PlainConnection(secured.bootstrap_servers)
    handshake_0(connection, "SCRAM-SHA-256")
    client = ScramClient(ScramMechanism.SHA_256, "alice", "wonder land", "client-nonce")
    challenge = exchange_token(connection, client.first())
    client.verify(exchange_token(connection, client.final(challenge)))
    assert connection.call(MetadataRequest(None)).brokers
    connection.close()


def test_client_may_send_a_sasl_message_before_it_reads_the_sasl_handshake_response(
    secured: LocalCluster,
) -> None:
    connection = PlainConnection(secured.bootstrap_servers)
    client = ScramClient(ScramMechanism.SHA_256, "alice", "wonder land", "client-nonce")
    handshake = kafka_sasl.SaslHandshakeRequest(mechanism="SCRAM-SHA-256", version=0)
    handshake.with_header(correlation_id=1, client_id="tests")
    first = client.first()
    data = handshake.encode(header=True, framed=True)
    connection.send(data + len(first).to_bytes(4, "big") + first)
    frames = connection.receive_all(2)
    final = client.final(bytes(frames[1]))
    data = encode_call(MetadataRequest(None), 2, "tests")
    connection.send(len(final).to_bytes(4, "big") + final + data)
    proof, metadata = connection.receive_all(2)
    client.verify(bytes(proof))
    assert decode_call(MetadataRequest(None), metadata).brokers
    connection.close()


def test_failed_login_of_a_client_older_than_kip_152_closes_the_connection(
    secured: LocalCluster,
) -> None:
    connection = PlainConnection(secured.bootstrap_servers)
    handshake_0(connection, "SCRAM-SHA-256")
    client = ScramClient(ScramMechanism.SHA_256, "alice", "wrong", "client-nonce")
    challenge = exchange_token(connection, client.first())
    with pytest.raises(EOFError):
        exchange_token(connection, client.final(challenge))
    connection.close()
