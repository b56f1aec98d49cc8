"""Secure an open cluster broker by broker under load; no send may fail.

The steps are those of ``docs/pages/operations/secure.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kafka_broker import free_ports
from support.send_load import BATCH, Load, read_values

from broker_lite.bus import connect
from broker_lite.cli.main import run as logbus
from broker_lite.errors import LogbusError
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "of alice"
TOPIC, COPIES = "moved", "copies"
BETWEEN = "listener.name.brokers."


def test_open_cluster_can_be_secured_under_load_without_a_failed_send(tmp_path: Path) -> None:
    certificates = tmp_path / "certificates"
    where = ["--dir", str(certificates)]
    for number in range(3):
        host = ["--host", "127.0.0.1"]
        assert logbus(["cert", "create", f"broker-{number}", *host, *where]) == 0
    with LocalCluster(3, directory=tmp_path / "cluster") as cluster:
        ports = free_ports(6)
        clients = {broker.id: ports[broker.id] for broker in cluster.brokers}
        brokers = {broker.id: ports[3 + broker.id] for broker in cluster.brokers}
        secured = ",".join(f"127.0.0.1:{port}" for port in clients.values())
        with connect(cluster.bootstrap_servers) as bus:
            for topic in (TOPIC, COPIES):
                bus.create_topic(
                    topic, partitions=3, replication_factor=3, config={"min.insync.replicas": "2"}
                )
        with Load(cluster.bootstrap_servers, "open", TOPIC, copies=COPIES) as load:
            load.goes_on()
            # 1. Add secured listeners beside the open one; brokers still use the open one.
            for broker in cluster.brokers:
                own = str(certificates / f"broker-{broker.id}")
                broker.settings |= {
                    "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},"
                    f"CLIENTS://127.0.0.1:{clients[broker.id]},"
                    f"BROKERS://127.0.0.1:{brokers[broker.id]}",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,"
                    "BROKERS:SSL",
                    "inter.broker.listener.name": "PLAINTEXT",
                    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
                    "ssl.keystore.location": f"{own}-clients.pem",
                    f"{BETWEEN}ssl.keystore.location": f"{own}-brokers.pem",
                    f"{BETWEEN}ssl.truststore.location": str(certificates / "brokers-ca.pem"),
                    f"{BETWEEN}ssl.client.auth": "required",
                    f"{BETWEEN}ssl.principal.mapping.rules": "RULE:^CN=(broker-[0-9]+)$/$1/",
                }
                roll(cluster, broker, load)
            # 2. Brokers connect to each other through their own listener. ACLs log denials but do
            # not enforce them yet.
            for broker in cluster.brokers:
                broker.settings |= {
                    "inter.broker.listener.name": "BROKERS",
                    "authorizer": "report",
                    "super.users": "User:admin",
                }
                roll(cluster, broker, load)
            alice = add_users_and_grants(cluster, tmp_path, secured, certificates)
            load.goes_on()
        with Load(secured, "secured", TOPIC, copies=COPIES, **alice) as last:
            last.goes_on()
            # 3. Remove the open listener.
            for broker in cluster.brokers:
                broker.settings |= {
                    "listeners": f"CLIENTS://127.0.0.1:{clients[broker.id]},"
                    f"BROKERS://127.0.0.1:{brokers[broker.id]}",
                    "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL",
                    "authorizer": "enforce",
                }
                broker.port = clients[broker.id]
                roll(cluster, broker, last)
        assert not load.failures and not last.failures
        with connect(secured, **alice) as bus:
            for topic, sent in (
                (TOPIC, load.sent + last.sent),
                (COPIES, load.sent[::BATCH] + last.sent[::BATCH]),
            ):
                assert read_values(bus, topic, len(sent)) == sorted(sent)
            with pytest.raises(LogbusError, match="AUTHORIZATION_FAILED"):
                bus.create_topic("refused", partitions=1)


def roll(cluster: LocalCluster, broker: Any, load: Load) -> None:
    """Restart one broker; wait until the next batches of the load are acknowledged."""
    broker.stop()
    broker.start()
    load.goes_on()


def add_users_and_grants(
    cluster: LocalCluster, folder: Path, secured: str, certificates: Path
) -> dict[str, str]:
    """Add admin, and alice with ACLs, through the listener without login; return alice's login."""
    password = folder / "password"
    password.write_text(PASSWORD + "\n", "utf-8")
    password.chmod(0o600)
    on = ["-b", cluster.bootstrap_servers]
    for user in ("admin", "alice"):
        assert logbus(["user", "add", user, "--password-file", str(password), *on]) == 0
    for words in (
        ["read", "write", "--topic", TOPIC],
        ["read", "write", "--topic", COPIES],
        ["write", "--transactional-id", "secured"],
        ["idempotent_write", "--cluster"],
    ):
        assert logbus(["acl", "add", "alice", *words, *on]) == 0
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "alice",
        "sasl_password": PASSWORD,
        "ssl_ca_location": str(certificates / "clients-ca.pem"),
    }
