"""``logbus up --secure`` and ``LocalCluster(secure=True)``: closed to strangers, open to its user
without an option."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from broker_lite.bus import connect
from broker_lite.client.client_config import take_security
from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError, LogbusError
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata.credentials import SALT_KEY
from broker_lite.metadata.znodes import CHANGES
from tests.patience import until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secured")
    with LocalCluster(3, directory=folder / "cluster", secure=True) as running:
        yield running


def test_clients_with_the_admin_file_exchange_replicated_records(secured: LocalCluster) -> None:
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic(
            "t", partitions=2, replication_factor=3, config={"min.insync.replicas": "3"}
        )
        with bus.producer() as producer:
            assert producer.send("t", value=b"hello", partition=0).result(60).offset == 0
    assert secured.client_config is not None
    rows = Path(secured.client_config).read_text("utf-8").splitlines()
    # librdkafka takes the file as it is, as in kcat -F.
    theirs = dict(row.split("=", 1) for row in rows)
    consumer = confluent_kafka.Consumer(
        {**theirs, "group.id": "theirs", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    found: list[bytes | None] = []

    def read() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return bool(found)

    until(read)
    consumer.close()
    assert found == [b"hello"]


def test_user_may_do_what_an_acl_allows_and_nothing_else(
    secured: LocalCluster, tmp_path: Path
) -> None:
    def logbus(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "broker_lite", *words]
        admin = ["-b", secured.bootstrap_servers, "-F", str(secured.client_config)]
        return subprocess.run([*command, *admin], capture_output=True, text=True, timeout=60)

    password = tmp_path / "password"
    password.write_text("of alice")
    assert logbus("user", "add", "alice", "--password-file", str(password)).returncode == 0
    rows = Path(str(secured.client_config)).read_text("utf-8").splitlines()
    of_alice = dict(row.split("=", 1) for row in rows) | {
        "sasl.username": "alice",
        "sasl.password": "of alice",
    }
    own = tmp_path / "alice.conf"
    own.write_text("".join(f"{name}={value}\n" for name, value in of_alice.items()))
    own.chmod(0o600)
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic("guarded", partitions=1)
        with bus.transaction("of-admin") as transaction:
            transaction.send("guarded", b"hello")
    with connect(secured.bootstrap_servers, client_config=str(own)) as bus:

        def read() -> list[bytes | None]:
            with bus.consumer("guarded", start="earliest") as consumer:
                return [record.value for record in consumer.poll(5.0)]

        with pytest.raises(LogbusError):
            read()
        assert logbus("acl", "add", "alice", "read", "--topic", "guarded").returncode == 0
        until(lambda: _succeeds(read))
        assert read() == [b"hello"]
        with bus.producer() as producer, pytest.raises(LogbusError) as refused:
            producer.send("guarded", b"no").result(30)
        assert "AUTHORIZATION_FAILED" in str(refused.value)
        assert logbus("acl", "delete", "alice", "read", "--topic", "guarded").returncode == 0
        until(lambda: not _succeeds(read))


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except LogbusError:
        return False
    return True


def test_znodes_belong_to_the_brokers_alone(secured: LocalCluster) -> None:
    client = KazooClient(hosts=secured.zookeeper.partition("/")[0])
    client.start()
    try:
        for path in ("/", "/logbus", f"/logbus{SALT_KEY}"):
            with pytest.raises(NoAuthError):
                client.get(path)
        secret = (secured.directory / "security/zookeeper.secret").read_text().strip()
        client.add_auth("digest", secret)
        left, seen = ["/logbus"], 0
        while left:
            path = left.pop()
            seen += 1
            schemes = {acl.id.scheme for acl in client.get_acls(path)[0]}
            assert schemes == {"digest"}, path
            left += [f"{path}/{name}" for name in client.get_children(path)]
        assert seen > 20 and client.exists(f"/logbus{SALT_KEY}")
    finally:
        client.stop()
        client.close()
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic("native", partitions=1, if_not_exists=True)
        with pytest.raises(InvalidConfigError, match=r"closed to clients.*leave out coordination"):
            bus.consumer("native", group="native", coordination="zookeeper")


def test_secrets_are_private_files_and_in_no_process(secured: LocalCluster) -> None:
    folder = secured.directory / "security"
    assert folder.stat().st_mode & 0o777 == secured.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    security, _ = take_security({"client_config": str(secured.client_config)})
    assert security is not None and isinstance(security.secret, Secret)
    hidden = [security.secret.reveal(), (folder / "zookeeper.secret").read_text().strip()]
    for process in secured.facts()["processes"]:
        for file in ("cmdline", "environ"):
            text = Path(f"/proc/{process}/{file}").read_bytes()
            assert not any(secret.encode() in text for secret in hidden)
    for log in secured.directory.rglob("*.log"):
        assert not any(secret in log.read_text("utf-8", "replace") for secret in hidden), log


def test_restarted_broker_keeps_port_and_certificate(secured: LocalCluster) -> None:
    broker = secured.brokers[0]
    before = broker.port, (secured.directory / "security/broker-0-clients.pem").read_bytes()
    broker.stop()
    broker.start()
    secured.renew_certificates()
    after = broker.port, (secured.directory / "security/broker-0-clients.pem").read_bytes()
    assert before == after
    connect(broker.endpoint, client_config=secured.client_config).close()


@pytest.fixture
def logbus(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path / "data")}
    environment.pop("LOGBUS_CLIENT_CONFIG", None)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=tmp_path,
            timeout=100,
        )
        assert done.returncode == code, done.stderr
        return done

    yield run
    run("down", "--dir", str(tmp_path / "cluster"))


@pytest.mark.slow
def test_commands_and_programs_need_no_option_for_a_secured_cluster(
    logbus: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = ["--dir", str(tmp_path / "cluster")]
    started = json.loads(logbus("up", "-d", "--secure", "--port", "0", *folder).stdout)
    assert started["client_config"] == str(tmp_path / "cluster/security/admin.conf")
    logbus("topic", "create", "t")
    logbus("topic", "describe", "t", "-b", started["bootstrap_servers"])
    assert json.loads(logbus("user", "list").stdout)["user"] == "admin"
    assert json.loads(logbus("status").stdout)["topics"] == 1
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("LOGBUS_CLIENT_CONFIG", raising=False)
    with connect() as bus:
        assert bus.topics() == ["t"]
        with bus.producer() as producer:
            assert producer.send("t", value=b"x").result(30).offset == 0
        with bus.consumer("t", start="earliest", group="g") as consumer:
            assert next(iter(consumer)).value == b"x"
    logbus("down", *folder)
    refused = logbus("up", "-d", "--insecure", *folder, code=1).stderr
    assert "is a secured cluster and stays one; leave the option out" in refused
    again = json.loads(logbus("up", "-d", "--port", "0", *folder).stdout)
    assert again["client_config"] == started["client_config"]
    assert "t" in logbus("topic", "list").stdout
    both = logbus("up", "--secure", "--insecure", *folder, code=2).stderr
    assert "exclude each other" in both


def test_open_cluster_is_closed_when_it_is_secured(tmp_path: Path) -> None:
    with (
        LocalCluster(1, directory=tmp_path / "c") as running,
        connect(running.bootstrap_servers) as bus,
        bus.producer() as producer,
    ):
        bus.create_topic("kept", partitions=1)
        producer.send("kept", value=b"x").result(30)
    with LocalCluster(1, directory=tmp_path / "c", secure=True) as running:
        with connect(running.bootstrap_servers, client_config=running.client_config) as bus:
            assert bus.topics() == ["kept"]
        client = KazooClient(hosts=running.zookeeper.partition("/")[0])
        client.start()
        with pytest.raises(NoAuthError):
            client.get(f"/logbus{CHANGES}")
        client.stop()
        client.close()


SPARK_PROGRAM = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).selectExpr("cast(id as string) value")
rows.write.format("logbus").option("topic", "t").mode("append").save()
print("counted", spark.read.format("logbus").option("subscribe", "t").load().count())
"""


@pytest.mark.slow
def test_spark_on_this_machine_needs_no_option_for_a_secured_cluster(
    logbus: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    logbus("up", "-d", "--secure", "--port", "0", "--dir", str(tmp_path / "cluster"))
    logbus("topic", "create", "t", "-p", "2")
    variables = {"XDG_DATA_HOME": str(tmp_path / "data"), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", SPARK_PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
        cwd=tmp_path,
        timeout=100,
    )
    assert "counted 100" in done.stdout, done.stderr
