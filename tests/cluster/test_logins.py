"""Logins at a real broker: other people's clients, the command line, deleted users."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka.errors import KafkaError
from plain_connection import PlainConnection

from broker_lite.cli.main import run as logbus
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import ScramClient
from broker_lite.wire.calls.cluster import MetadataRequest
from broker_lite.wire.calls.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

pytestmark = pytest.mark.real
BOTH = "SCRAM-SHA-256,SCRAM-SHA-512"


@pytest.fixture
def secured(make_cluster: Callable[..., LocalCluster], tmp_path: Path) -> LocalCluster:
    """One broker that demands logins, with the user alice."""
    running = make_cluster(1, config={"sasl.enabled.mechanisms": BOTH})
    add_user(running, tmp_path, "alice", "wonder land")
    return running


def add_user(cluster: LocalCluster, folder: Path, name: str, password: str) -> None:
    file = folder / f"{name}.password"
    file.write_text(password + "\n", "utf-8")
    arguments = ["--password-file", str(file), "--first", "--zookeeper", cluster.zookeeper]
    assert logbus(["user", "add", name, *arguments]) == 0


def logged_in(cluster: LocalCluster, user: str, password: str) -> PlainConnection:
    """Return a connection after its login; the broker may learn of a new user a moment later."""
    for attempt in range(100):
        connection = PlainConnection(cluster.bootstrap_servers)
        code = log_in(connection, user, password)
        if not code:
            return connection
        assert code == 58, attempt
        connection.close()
    raise AssertionError(f"{user} cannot log in")


def log_in(connection: PlainConnection, user: str, password: str) -> int:
    """Log in and return the error code of the last answer."""
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


def test_clients_log_in_and_failures_look_alike(secured: LocalCluster) -> None:
    logged_in(secured, "alice", "wonder land").close()
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
    with pytest.raises(KafkaError):
        kafka.KafkaAdminClient(sasl_plain_password="wrong", **options)
    failures = []
    for user, password in (("alice", "wrong"), ("nobody", "wonder land")):
        connection = PlainConnection(secured.bootstrap_servers)
        began = time.monotonic()
        failures.append(log_in(connection, user, password))
        assert time.monotonic() - began >= 0.1
        connection.close()
    assert failures == [58, 58]


def test_no_other_request_is_answered_before_login(secured: LocalCluster) -> None:
    connection = PlainConnection(secured.bootstrap_servers)
    with pytest.raises(EOFError):
        connection.call(MetadataRequest(None))
    connection.close()
    (log,) = [broker.log for broker in secured.brokers]
    assert re.search(r"closed: a request before the login", log.read_text("utf-8"))


def test_deleted_user_loses_open_connections(secured: LocalCluster, tmp_path: Path) -> None:
    connection = logged_in(secured, "alice", "wonder land")
    assert connection.call(MetadataRequest(())).topics == ()
    producer = confluent_kafka.Producer(
        librdkafka(secured, "alice", "wonder land", "SCRAM-SHA-256")
    )
    assert producer.list_topics(timeout=20).brokers
    theirs = AdminClient(librdkafka(secured, "alice", "wonder land", "SCRAM-SHA-256"))
    deletion = confluent_kafka.admin.UserScramCredentialDeletion
    done = theirs.alter_user_scram_credentials(
        [
            deletion("alice", confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256),
            deletion("alice", confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512),
        ]
    )
    began = time.monotonic()
    with pytest.raises(EOFError):
        connection.receive()
    assert time.monotonic() - began < 5
    assert set(done) == {"alice"}
    connection.close()
