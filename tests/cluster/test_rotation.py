"""Change all secrets of a cluster and its access control lists under load; no send may fail.

Each round replaces the certificates, the CAs, a password and ZooKeeper's credential.
``make rotation ROUNDS=20`` runs more rounds.
"""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from support.certificates import served_certificate
from support.patience import until
from support.send_load import Load, read_values

from broker_lite.bus import connect
from broker_lite.cli.main import run as logbus
from broker_lite.errors import LogbusError, SaslAuthenticationError
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.issuing import BROKERS, CLIENTS, CertificateFolder
from broker_lite.metadata.znodes import CHANGES

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("LOGBUS_ROTATION_ROUNDS", "2"))
TOPIC = "rotated"
CAS = (CLIENTS, BROKERS)


def test_rotation_of_all_secrets_and_acls_under_load_fails_no_send(
    tmp_path: Path,
) -> None:
    with LocalCluster(3, directory=tmp_path / "cluster", secure=True) as cluster:
        admin = ["-b", cluster.bootstrap_servers, "-F", str(cluster.client_config)]
        password = tmp_path / "password"
        ca = str(cluster.directory / "security" / "clients-ca.pem")

        def login(number: int) -> dict[str, str]:
            return {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_username": "alice",
                "sasl_password": f"password {number}",
                "ssl_ca_location": ca,
            }

        def run(*words: str) -> None:
            assert logbus([*words, *admin]) == 0

        password.write_text("password 0")
        run("user", "add", "alice", "--password-file", str(password))
        run("topic", "create", TOPIC, "-p", "3", "-r", "3")
        grants = [["read", "write", "--topic", TOPIC], ["all", "--topic", "rot", "--prefix"]]
        run("acl", "add", "alice", *grants[0])
        loads = [Load(cluster.bootstrap_servers, "round 0", TOPIC, **login(0)).start()]
        try:
            loads[0].goes_on()
            for number in range(1, ROUNDS + 1):
                _renew_certificates(cluster)
                loads[-1].goes_on()
                run("acl", "add", "alice", *grants[number % 2])
                run("acl", "delete", "alice", *grants[1 - number % 2], "--if-exists", "--yes")
                loads[-1].goes_on()
                password.write_text(f"password {number}")
                run("user", "rotate", "alice", "--password-file", str(password))
                loads[-1].goes_on()
                servers = cluster.bootstrap_servers
                loads.append(Load(servers, f"round {number}", TOPIC, **login(number)).start())
                loads[-1].goes_on()
                loads[-2].stop()
                authorities = tmp_path / f"authorities-{number}"
                _rotate_authorities(cluster, authorities, loads[-1])
                # This restarts the brokers, so that they connect to each other with the new
                # certificates.
                _rotate_zookeeper_credential(cluster, number, loads[-1])
        finally:
            for load in loads:
                load.stop()
        assert not [load.failures for load in loads if load.failures]
        sent = [value for load in loads for value in load.sent]
        with connect(cluster.bootstrap_servers, **login(ROUNDS)) as bus:
            assert read_values(bus, TOPIC, len(sent)) == sorted(sent)
        # The former password works until the next rotation. This password is two rotations old.
        with pytest.raises(SaslAuthenticationError):
            connect(cluster.bootstrap_servers, **login(ROUNDS - 2)).close()
        old = {"ssl_ca_location": str(authorities / "former-clients-ca.pem")}
        with pytest.raises(LogbusError, match="did not sign the broker's certificate"):
            connect(cluster.bootstrap_servers, **(login(ROUNDS) | old)).close()


def _rotate_zookeeper_credential(cluster: LocalCluster, number: int, load: Load) -> None:
    """Let the brokers use a new credential beside the old one, and then the new one alone."""
    file = cluster.directory / "security" / "zookeeper.secret"
    old, new = file.read_text("utf-8").strip(), f"brokers-{number}:of-credential-{number}"
    on = ["--zookeeper", cluster.zookeeper, "--auth-file", str(file)]
    for lines in ([old, new], [new]):
        file.write_text("\n".join(lines) + "\n", "utf-8")
        for broker in cluster.brokers:
            broker.stop()
            broker.start()
            load.goes_on()
        assert logbus(["zookeeper", "secure", *on, "--yes"]) == 0
        load.goes_on()
    address = cluster.zookeeper.partition("/")[0]
    assert not _may_read(address, old) and _may_read(address, new)


def _may_read(address: str, credential: str) -> bool:
    client = KazooClient(hosts=address, auth_data=[("digest", credential)])
    client.start()
    try:
        client.get(f"/logbus{CHANGES}")
    except NoAuthError:
        return False
    finally:
        client.stop()
        client.close()
    return True


def _renew_certificates(cluster: LocalCluster) -> None:
    """Renew every certificate, and wait until all brokers present the new ones."""
    before = {broker.endpoint: served_certificate(broker.endpoint) for broker in cluster.brokers}
    folder = CertificateFolder(cluster.directory / "security")
    assert len(folder.renew(datetime.datetime.now(datetime.UTC), everything=True)) == 6
    for broker in cluster.brokers:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
    until(lambda: all(served_certificate(endpoint) != old for endpoint, old in before.items()))


def _rotate_authorities(cluster: LocalCluster, folder: Path, load: Load) -> None:
    """Replace the CAs of clients and brokers in three steps.

    Trust the new CA beside the old CA. Use certificates of the new CA. Then stop trusting the old
    CA.
    """
    used, made = CertificateFolder(cluster.directory / "security"), CertificateFolder(folder)
    present = [each for each in used.certificates() if not each.is_ca]
    for each in present:
        name, _, ca = each.path.stem.rpartition("-")
        made.certify(ca, name, each.hosts, datetime.datetime.now(datetime.UTC))
    for ca in CAS:
        old = (used.folder / f"{ca}-ca.pem").read_text("utf-8")
        made.write(f"former-{ca}-ca.pem", old)
        used.write(f"{ca}-ca.pem", old + (folder / f"{ca}-ca.pem").read_text("utf-8"))
    _reload(cluster, load)
    for name in (*(each.path.name for each in present), *(f"{ca}-ca.key" for ca in CAS)):
        used.write(name, (folder / name).read_text("utf-8"))
    _reload(cluster, load)
    for ca in CAS:
        used.write(f"{ca}-ca.pem", (folder / f"{ca}-ca.pem").read_text("utf-8"))
    _reload(cluster, load)


def _reload(cluster: LocalCluster, load: Load) -> None:
    """Make the brokers reload their changed files; wait until each broker has logged the reload."""
    said = "listener BROKERS uses the changed TLS files"
    before = {broker.id: broker.log.read_text("utf-8").count(said) for broker in cluster.brokers}
    for broker in cluster.brokers:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
    for broker in cluster.brokers:
        until(lambda at=broker: at.log.read_text("utf-8").count(said) > before[at.id])
    load.goes_on()
