"""Manage users and ACLs of a secured cluster with Apache Kafka's own tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.client_programs import Note, OwnNote
from support.java_tools import ACLS, CONFIGS, CONSUMER, PERFORMANCE, PRODUCER, TOPICS, Tools
from support.token_issuer import AUDIENCE, ISSUER, Issuer

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

ISSUED = Issuer()
TOPIC, GROUP, PASSWORD = "guarded", "readers", "of alice"
SESSION = timedelta(seconds=2)
ALICE = ("--entity-type", "users", "--entity-name", "alice")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "keys.json").write_bytes(ISSUED.key_set())
    config = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": str(folder / "keys.json"),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "connections.max.reauth.ms": str(SESSION // timedelta(milliseconds=1)),
    }
    with LocalCluster(3, directory=folder / "cluster", secure=True, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def admin(secured: LocalCluster, class_path: str) -> Tools:
    return Tools(class_path, secured.bootstrap_servers, str(_admin_file(secured)))


@pytest.fixture(scope="module")
def alice(
    secured: LocalCluster, class_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Tools:
    """Return Kafka's tools with a settings file that logs in as alice."""
    rows = _admin_file(secured).read_text("utf-8").splitlines()
    login = (
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{PASSWORD}";'
    )
    own = [row for row in rows if not row.startswith("sasl.jaas.config=")]
    file = tmp_path_factory.mktemp("alice") / "alice.properties"
    file.write_text("\n".join([*own, login]) + "\n", "utf-8")
    return Tools(class_path, secured.bootstrap_servers, str(file))


def _admin_file(secured: LocalCluster) -> Path:
    return Path(str(secured.client_config)).with_suffix(".properties")


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["java"], asked, answer)


def test_java_client_logs_in_with_sasl_plain_and_with_an_oauth_token(
    secured: LocalCluster,
    class_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    note: OwnNote,
) -> None:
    rows = _admin_file(secured).read_text("utf-8").splitlines()
    own = [row for row in rows if not row.startswith(("sasl.jaas.config=", "sasl.mechanism="))]
    (tmp_path / "token").write_text(ISSUED.token("admin"))
    url = f"file://{tmp_path}/token"
    monkeypatch.setenv(
        "JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    )
    packages = "org.apache.kafka.common.security"
    password = dict(
        row.split("=", 1) for row in Path(str(secured.client_config)).read_text().splitlines()
    )["sasl.password"]
    logins = {
        "PLAIN": f'sasl.jaas.config={packages}.plain.PlainLoginModule required username="admin" '
        f'password="{password}";',
        "OAUTHBEARER": f"sasl.jaas.config={packages}.oauthbearer.OAuthBearerLoginModule required;\n"
        f"sasl.oauthbearer.token.endpoint.url={url}\nsasl.login.callback.handler.class="
        f"{packages}.oauthbearer.OAuthBearerLoginCallbackHandler",
    }
    for mechanism, login in logins.items():
        file = tmp_path / f"{mechanism}.properties"
        file.write_text("\n".join([*own, f"sasl.mechanism={mechanism}", login]) + "\n", "utf-8")
        tools = Tools(class_path, secured.bootstrap_servers, str(file))
        tools(TOPICS, "--create", "--topic", mechanism, "--partitions", "1")
        tools(PRODUCER, "--topic", mechanism, stdin="hello\n")
        read = ("--topic", mechanism, "--from-beginning", "--max-messages", "1")
        tools(CONSUMER, *read, "--timeout-ms", "20000", says="hello")
        note(f"SASL_SSL with {mechanism}", "served")


def test_java_client_logs_in_again_on_its_open_connection(
    secured: LocalCluster, admin: Tools, note: OwnNote
) -> None:
    """The client sends for five seconds, longer than a login session. After the session's end, the
    broker serves no request until a new login."""
    admin(TOPICS, "--create", "--topic", "again", "--partitions", "1")
    load = ("--topic", "again", "--num-records", "250", "--record-size", "9", "--throughput", "50")
    once = ("--command-property", "retries=0", "--command-property", "enable.idempotence=false")
    admin(PERFORMANCE, *load, *once, says="250 records sent")
    folder = Path(str(secured.client_config)).parent
    lines = [
        json.loads(line)
        for file in folder.glob("broker-*-audit.log")
        for line in file.read_text("utf-8").splitlines()
    ]
    times = sorted(
        datetime.fromisoformat(line["time"])
        for line in lines
        if line["event"] == "login" and line.get("client_id") == "perf-producer-client"
    )
    assert times[-1] - times[0] > SESSION
    for broker in secured.brokers:
        assert "a request before the login" not in broker.log.read_text("utf-8")
    note("SASL_SSL with SCRAM-SHA-256: a new login on the open connection", "served")


def test_kafka_configs_and_kafka_acls_administer_a_secured_cluster(
    admin: Tools, alice: Tools, note: OwnNote
) -> None:
    admin(TOPICS, "--create", "--topic", TOPIC, "--partitions", "1")
    admin(PRODUCER, "--topic", TOPIC, stdin="hello\n")
    scram = f"SCRAM-SHA-256=[iterations=8192,password={PASSWORD}]"
    admin(CONFIGS, "--alter", *ALICE, "--add-config", scram, says="Completed updating")
    note("kafka-configs --add-config SCRAM-SHA-256", "served")

    read = ("--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", "1")
    consume = (*read, "--timeout-ms", "20000")
    alice(CONSUMER, *consume, says="TopicAuthorizationException")
    rights = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", TOPIC)
    admin(ACLS, "--add", *rights, "--group", GROUP, says="Adding ACLs for resource")
    listed = admin.eventually("User:alice", ACLS, "--list", "--topic", TOPIC)
    assert "operation=READ, permissionType=ALLOW" in listed
    assert "hello" in alice.eventually("hello", CONSUMER, *consume)
    note("kafka-acls --add, --list", "served")

    alice(PRODUCER, "--topic", TOPIC, stdin="no\n", says="AuthorizationException")
    assert "ClusterAuthorizationException" in _fails(alice, ACLS, "--list")
    note("kafka-acls as a user without permission", "refused")

    denial = ("--deny-principal", "User:alice", "--operation", "Read", "--topic", TOPIC)
    admin(ACLS, "--add", *denial)
    admin.eventually("permissionType=DENY", ACLS, "--list", "--topic", TOPIC)
    alice(CONSUMER, *consume, says="TopicAuthorizationException")
    admin(ACLS, "--remove", "--force", *denial)
    admin(ACLS, "--remove", "--force", *rights, "--group", GROUP)
    assert "User:alice" not in admin(ACLS, "--list", "--topic", TOPIC)
    note("kafka-acls --remove", "served")

    prefix = ("--topic", "guard", "--resource-pattern-type", "prefixed")
    admin(ACLS, "--add", "--allow-principal", "User:alice", "--producer", *prefix)
    alice.eventually(TOPIC, TOPICS, "--list")
    note("kafka-acls --producer, --resource-pattern-type prefixed", "served")

    admin(CONFIGS, "--alter", *ALICE, "--delete-config", "SCRAM-SHA-256", says="Completed")
    assert "SaslAuthenticationException" in _fails(alice, TOPICS, "--list")
    note("kafka-configs --delete-config SCRAM-SHA-256", "served")


def _fails(tools: Tools, tool: str, *arguments: str) -> str:
    return tools(tool, *arguments, code=1)
