"""Test ``logbus up --secure`` and ``LocalCluster(secure=True)``.

The cluster refuses other users of the machine. The user who started it needs no option.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from support.patience import until
from support.spark_planning import ends, fails

from broker_lite.bus import connect
from broker_lite.cli import cluster_checks
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.client.administration import users
from broker_lite.client.client_config import chosen_security, security_of_file, take_security
from broker_lite.client.fetch.range_reader import read_range
from broker_lite.client.transport.pool import Pool
from broker_lite.config.secret import Secret
from broker_lite.errors import (
    GroupAuthorizationError,
    InvalidConfigError,
    LogbusError,
    TopicAuthorizationError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata.credentials import SALT_KEY, user_path
from broker_lite.metadata.znodes import CHANGES
from broker_lite.model import ScramMechanism, TopicPartition
from pyspark_logbus import options
from pyspark_logbus.stream_planner import StreamPlanner

pytestmark = pytest.mark.real

NOBODY = 65534
"""The user and group ids of ``nobody``, who owns no file."""


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    # Other users may enter this folder, unlike pytest's own.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with LocalCluster(
            3, directory=f"{folder}/cluster", secure=True, config={"metrics.port": "0"}
        ) as running:
            yield running


def test_client_config_of_a_secured_cluster_is_valid_for_logbus_and_librdkafka(
    secured: LocalCluster,
) -> None:
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic(
            "t", partitions=2, replication_factor=3, config={"min.insync.replicas": "3"}
        )
        with bus.producer() as producer:
            assert producer.send("t", value=b"hello", partition=0).result(60).offset == 0
    assert secured.client_config is not None
    rows = Path(secured.client_config).read_text("utf-8").splitlines()
    # The file's settings are also valid for librdkafka, as with kcat -F.
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


def command(
    cluster: LocalCluster, *words: str, config: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as the user whose login is in the file ``config``; by default as admin."""
    arguments = [sys.executable, "-P", "-m", "broker_lite", *words]
    login = ["-b", cluster.bootstrap_servers, "-F", config or str(cluster.client_config)]
    return subprocess.run([*arguments, *login], capture_output=True, text=True, timeout=60)


def add_user(cluster: LocalCluster, folder: Path, name: str) -> Path:
    """Add a user, and return the file with the user's login."""
    password = folder / f"{name}.password"
    password.write_text(f"of {name}")
    assert command(cluster, "user", "add", name, "--password-file", str(password)).returncode == 0
    rows = Path(str(cluster.client_config)).read_text("utf-8").splitlines()
    login = dict(row.split("=", 1) for row in rows)
    login |= {"sasl.username": name, "sasl.password": f"of {name}"}
    own = folder / f"{name}.conf"
    own.write_text("".join(f"{key}={value}\n" for key, value in login.items()))
    own.chmod(0o600)
    return own


def test_commands_refuse_to_delete_or_add_the_user_who_runs_them(
    secured: LocalCluster, tmp_path: Path
) -> None:
    """Regression: the only administrator deleted its own user, and the command then reported a
    failure."""
    password = tmp_path / "password"
    password.write_text("new")
    for words, cure in (
        (("user", "delete", "admin"), "Make another user an administrator"),
        (("user", "delete", "admin", "--yes"), "Make another user an administrator"),
        (("user", "add", "admin", "--password-file", str(password), "--yes"), "user rotate admin"),
    ):
        refused = command(secured, *words)
        assert refused.returncode == 1
        assert "you are logged in as 'admin'" in refused.stderr and cure in refused.stderr
        assert "[y/N]" not in refused.stderr
    assert command(secured, "user", "list").returncode == 0
    second = str(add_user(secured, tmp_path, "second"))
    assert command(secured, "acl", "add", "second", "all", "--cluster").returncode == 0
    add_user(secured, tmp_path, "third")
    assert command(secured, "user", "delete", "third", "--yes", config=second).returncode == 0


def test_commands_report_that_the_user_of_an_acl_does_not_exist(
    secured: LocalCluster, tmp_path: Path
) -> None:
    """Regression: Kafka permits an ACL for any name, so an ACL for a misspelt name had no
    effect, and no message said so."""
    for name in ("fifth", "CN=of a certificate", "*"):
        said = command(secured, "acl", "add", name, "read", "--topic", "noted").stderr
        assert ("there is no user 'fifth' yet" in said) == (name == "fifth")
    assert "no user exists for User:fifth" in command(secured, "acl", "list").stderr
    add_user(secured, tmp_path, "fifth")
    assert "no user" not in command(secured, "acl", "list", "--principal", "fifth").stderr
    said = command(secured, "user", "delete", "fifth", "--yes").stderr
    assert "ACLs still name it: logbus acl list --principal fifth" in said


def test_acl_delete_succeeds_if_it_removes_the_callers_own_permissions(
    secured: LocalCluster, tmp_path: Path
) -> None:
    """Regression: the command deleted the ACL, but reported a failure because it could no longer
    list the ACLs."""
    own = str(add_user(secured, tmp_path, "fourth"))
    words = ("fourth", "all", "--cluster")
    assert command(secured, "acl", "add", *words).returncode == 0
    deleted = command(secured, "acl", "delete", *words, "--yes", config=own)
    assert deleted.returncode == 0, deleted.stderr
    assert command(secured, "acl", "list", config=own).returncode == 1


def test_user_may_do_what_an_acl_allows_and_nothing_else(
    secured: LocalCluster, tmp_path: Path
) -> None:
    logbus = functools.partial(command, secured)
    own = add_user(secured, tmp_path, "alice")
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
        add = ("acl", "add", "alice", "read", "--topic", "guarded")
        assert json.loads(logbus(*add, "--dry-run").stdout)["added"] is False
        assert json.loads(logbus(*add).stdout)["added"] is True
        again = logbus(*add)
        assert again.returncode == 1 and "this ACL exists" in again.stderr
        assert json.loads(logbus(*add, "--if-not-exists").stdout)["added"] is False
        until(lambda: _succeeds(read))
        assert read() == [b"hello"]
        # Without DESCRIBE on the cluster, ``status`` shows only the topics that the user may see.
        status = logbus("status", config=own)
        assert (status.returncode, json.loads(status.stdout)["topics"]) == (0, 1), status.stderr
        assert json.loads(status.stdout)["causes"] == []
        assert "disks, reassignments and ZooKeeper are not checked" in status.stderr
        check = logbus("acl", "check", "alice", "read", "--topic", "guarded")
        why = "allow User:alice to read topic 'guarded'"
        assert json.loads(check.stdout) == {"allowed": True, "because": why}
        check = logbus("acl", "check", "alice", "write", "--topic", "guarded")
        assert (check.returncode, json.loads(check.stdout)["because"]) == (1, "no ACL allows it")
        with bus.producer() as producer, pytest.raises(LogbusError) as refused:
            producer.send("guarded", b"no").result(30)
        assert "User:alice may not write topic 'guarded'" in str(refused.value)
        assert str(refused.value).endswith("logbus acl add alice write --topic guarded")
        delete = ("acl", "delete", "alice", "read", "--topic", "guarded")
        assert logbus(*delete, "--dry-run").returncode == 0 and read() == [b"hello"]
        assert logbus(*delete, "--yes").returncode == 0
        assert logbus(*delete, "--yes").returncode == 1
        assert logbus(*delete, "--yes", "--if-exists").returncode == 0
        until(lambda: not _succeeds(read))


@pytest.mark.parametrize("may_describe", [True, False])
def test_running_query_fails_with_an_authorization_error_after_read_access_is_revoked(
    secured: LocalCluster, tmp_path: Path, may_describe: bool
) -> None:
    """Regression: the query read no more records, without an error. Without the permission to
    describe, the topic counted as deleted, and failOnDataLoss=false skipped its records."""
    name = topic = f"reader-{may_describe}"
    own = add_user(secured, tmp_path, name)
    grants = [("read", "--topic", topic), ("read", "--group", "spark-", "--prefix")]
    if may_describe:
        grants.append(("describe", "--topic", topic))
    for words in grants:
        assert command(secured, "acl", "add", name, *words).returncode == 0
    given = {
        "subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false",
        "client.config": str(own), "metadata.max.age.ms": "100",
    }  # fmt: skip
    found = options.read_options(options.parse(given), secured.bootstrap_servers, streaming=True)
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic(topic, partitions=1)
        with bus.producer() as producer:
            producer.send(topic, b"1")
    query, again = StreamPlanner(found), StreamPlanner(found)
    try:
        start = query.initial_offset()
        end = until(
            lambda: query.latest_offset(start, unlimited=False), lambda at: ends(at, topic) == [1]
        )
        assert command(secured, "acl", "delete", name, *grants[0], "--yes").returncode == 0
        fails(lambda: query.latest_offset(end, unlimited=False), TopicAuthorizationError)
        # A restarted query repeats its batch before it looks for new records.
        fails(lambda: again.ranges(start, end), TopicAuthorizationError)
    finally:
        query.stop()
        again.stop()


def test_error_of_a_denied_request_names_the_command_that_grants_the_permission(
    secured: LocalCluster, tmp_path: Path
) -> None:
    own = str(add_user(secured, tmp_path, "sixth"))
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic("closed", partitions=1)
    # A topic that the user may not see and a missing topic have one answer.
    for name in ("closed", "missing"):
        said = command(secured, "produce", name, config=own).stderr
        assert f"topic '{name}' does not exist, or User:sixth may not see it" in said
        assert said.endswith(f"logbus acl add sixth write --topic {name}\n")
    # With WRITE on any topic, the user gets a producer id, and the leader refuses the batch.
    assert command(secured, "acl", "add", "sixth", "write", "--topic", "other").returncode == 0
    assert command(secured, "acl", "add", "sixth", "describe", "--topic", "closed").returncode == 0
    with connect(secured.bootstrap_servers, client_config=own) as bus:
        with bus.producer() as producer, pytest.raises(TopicAuthorizationError) as refused:
            producer.send("closed", b"no").result(30)
        assert "User:sixth may not write topic 'closed'" in refused.value.message
        assert refused.value.message.endswith("logbus acl add sixth write --topic closed")
        with pytest.raises(GroupAuthorizationError) as joined:
            bus.consumer("closed", group="g 1").poll(1.0)
        # Spark's executors read ranges by read_range.
        tp = TopicPartition("closed", 0)
        topic_id = bus.admin.cluster((tp.topic,)).topic_id(tp.topic)
        pool = Pool(security=security_of_file(Path(own)))
        servers = secured.bootstrap_servers
        with pytest.raises(TopicAuthorizationError) as unread:
            list(read_range(tp, topic_id, 0, 0, 1, bootstrap=servers, pool=pool))
        pool.close()
        assert "User:sixth may not read topic 'closed'" in unread.value.message
        assert unread.value.message.endswith("logbus acl add sixth read --topic closed")
        assert "User:sixth may not read group 'g 1'" in joined.value.message
        assert joined.value.message.endswith("logbus acl add sixth read --group 'g 1'")


def test_audit_log_names_user_and_action_and_neither_it_nor_metrics_hold_a_password(
    secured: LocalCluster, tmp_path: Path
) -> None:
    admin = str(secured.client_config)
    rows = dict(row.split("=", 1) for row in Path(admin).read_text("utf-8").splitlines())
    password = "canary-7f3a"
    wrong = "canary-of-nobody"
    with connect(secured.bootstrap_servers, client_config=admin) as bus:
        bus.create_topic("audited", partitions=2)

    def logbus(*words: str) -> None:
        command = [sys.executable, "-P", "-m", "broker_lite", *words, "-F", admin]
        command += ["-b", secured.bootstrap_servers]
        subprocess.run(command, capture_output=True, check=True, timeout=60)

    file = tmp_path / "password"
    file.write_text(password)
    logbus("user", "add", "mallory", "--password-file", str(file))
    logbus("topic", "alter", "audited", "--config", "retention.ms=60000", "--yes")
    logbus("topic", "alter", "audited", "--config", "retention.ms=70000")
    logbus("topic", "elect", "audited")
    logbus("topic", "reassign", "audited", "-P", "1", "-r", "1", "--wait", "60", "--yes")
    stranger(rows)
    logbus("quota", "set", "producer_byte_rate", "9999999", "--user", "mallory")
    for name, secret in (("mallory", password), ("nobody", wrong)):
        own = tmp_path / f"{name}.conf"
        of_user = rows | {"sasl.username": name, "sasl.password": secret}
        own.write_text("".join(f"{key}={value}\n" for key, value in of_user.items()))
        own.chmod(0o600)
        for _ in range(4):
            with (
                pytest.raises(LogbusError),
                connect(secured.bootstrap_servers, client_config=str(own)) as bus,
                bus.producer() as producer,
            ):
                producer.send("audited", value=b"no").result(30)

    files = sorted(Path(admin).parent.glob("broker-*-audit.log"))
    assert len(files) == len(secured.brokers)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for each in files for line in each.read_text().splitlines()]

    def has(**fields: Any) -> bool:
        return any(fields.items() <= each.items() for each in lines())

    wanted: list[dict[str, Any]] = [
        {"event": "login", "user": "User:admin", "host": "127.0.0.1"},
        {"event": "login", "user": "User:mallory", "mechanism": "SCRAM-SHA-256"},
        {"event": "login_failed", "user": "User:nobody", "host": "127.0.0.1"},
        {"event": "login", "user": "User:broker-0", "mechanism": "SSL", "listener": "BROKERS"},
        {"event": "login_failed", "mechanism": "SSL", "listener": "BROKERS"},
        {"event": "changed", "user": "User:admin", "api": "elect_leaders",
         "object": "partition audited-0", "after": {"election": "preferred"}},
        {"event": "changed", "user": "User:admin", "api": "alter_partition_reassignments",
         "object": "partition audited-1"},
        {"event": "denied", "user": "User:mallory", "object": "topic audited"},
        {"event": "changed", "user": "User:admin", "object": "topic audited",
         "api": "create_topics"},
        {"event": "changed", "user": "User:admin", "object": "topic audited",
         "before": {"retention.ms": "60000"}, "after": {"retention.ms": "70000"}},
        {"event": "changed", "user": "User:admin", "object": "user mallory",
         "before": {"mechanisms": "[]"}, "after": {"set_mechanisms": "[1, 2]"}},
        {"event": "changed", "object": "quota of user mallory",
         "after": {"producer_byte_rate": 9999999.0}},
    ]  # fmt: skip
    for row in wanted:
        until(functools.partial(has, **row))
    everything = "".join(each.read_text() for each in files)
    for broker in secured.brokers:
        url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        assert "logbus_requests_total" in text
        everything += text
    for secret in (password, wrong, rows["sasl.password"]):
        assert secret not in everything
    for each in files:
        written: dict[tuple[str, ...], datetime] = {}
        for line in map(json.loads, each.read_text().splitlines()):
            if line["event"] == "denied":
                resource = line["object"].partition(" ")[0]
                kind = line["user"], line["host"], line["operation"], resource
                at, before = datetime.fromisoformat(line["time"]), written.get(kind)
                assert before is None or at - before > timedelta(seconds=9), line
                written[kind] = at


def stranger(options: dict[str, str]) -> None:
    """Try to connect to the listener that only brokers may use, without a client certificate."""
    resource = confluent_kafka.admin.ConfigResource("BROKER", "0")
    admin = confluent_kafka.admin.AdminClient(options)
    [described] = admin.describe_configs([resource]).values()
    listeners = described.result(30)["advertised.listeners"].value
    address = dict(row.split("://") for row in listeners.split(","))["BROKERS"]
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain) as sock,
        pytest.raises(ssl.SSLError),
    ):
        sock.recv(1)


def test_mirror_copies_between_a_secured_and_an_open_cluster(
    secured: LocalCluster, cluster: LocalCluster
) -> None:
    def mirror(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "broker_lite", "mirror", "--once", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    closed, opened = secured.bootstrap_servers, cluster.bootstrap_servers
    file = str(secured.client_config)
    with connect(closed, client_config=file) as bus, connect(opened) as others:
        for each, topic in ((bus, "from-secured"), (others, "from-open")):
            each.create_topic(topic, partitions=1)
            with each.producer() as producer:
                producer.send(topic, b"hello").result(60)
        out = ["--from", closed, "--to", opened, "--topics", "from-secured"]
        refused = mirror(*out)
        assert refused.returncode and "--from-config" in refused.stderr
        done = mirror(*out, "--from-config", file)
        assert done.returncode == 0, done.stderr
        back = ["--from", opened, "--to", closed, "--topics", "from-open"]
        for _ in range(2):  # The second mirror reads the state that the first one stored.
            done = mirror(*back, "--to-config", file)
            assert done.returncode == 0, done.stderr
        for each, topic in ((others, "from-secured"), (bus, "from-open")):
            with each.consumer(topic, start="earliest") as consumer:
                assert next(iter(consumer)).value == b"hello"


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except LogbusError:
        return False
    return True


def test_doctor_finds_no_fault_in_the_security_of_a_secured_cluster(
    secured: LocalCluster,
) -> None:
    with chosen_security(security_of_file(Path(str(secured.client_config)))):
        cluster = ChosenCluster(secured.bootstrap_servers)
        finding = cluster_checks.certificates(cluster)
        found = [
            check(cluster)
            for check in (
                cluster_checks.access,
                cluster_checks.znodes,
                cluster_checks.zookeeper_servers,
            )
        ]
    assert finding.state == "ok"
    assert re.fullmatch(r"the first ends on \d{4}-\d\d-\d\d", finding.found)
    assert [each.state for each in found] == ["ok"] * 3, found
    assert found[0].found == "clients need a login and ACLs, ZooKeeper a credential"
    assert re.fullmatch(r"\d+\.\d+\.\d+", found[2].found)


def test_znode_that_brokers_cannot_read_is_reported_with_the_remedy(secured: LocalCluster) -> None:
    user = secured.client_config
    with connect(secured.bootstrap_servers, client_config=user) as bus:
        mechanisms = [ScramMechanism.SHA_256]
        bus.admin.run(users.set_password, "dora", "of dora", mechanisms)
        client = KazooClient(hosts=secured.zookeeper.partition("/")[0])
        client.start()
        try:
            secret = (secured.directory / "security/zookeeper.secret").read_text().strip()
            client.add_auth("digest", secret)
            client.set(f"/logbus{user_path('dora')}", b"{}")
        finally:
            client.stop()
            client.close()
        # A broker reads all znodes when it starts.
        secured.brokers[0].stop()
        secured.brokers[0].start()
        cluster = ChosenCluster(secured.bootstrap_servers)
        with chosen_security(security_of_file(Path(str(user)))):
            until(lambda: cluster_checks.znodes(cluster).state == "warning")
            finding = cluster_checks.znodes(cluster)
        assert finding.found.startswith("znode /credentials/users/dora cannot be read: it holds")
        assert "logbus user add 'dora'" in finding.cure
        bus.admin.run(users.set_password, "dora", "again", mechanisms)
        with chosen_security(security_of_file(Path(str(user)))):
            until(lambda: cluster_checks.znodes(cluster).state == "ok")


def test_znodes_of_a_secured_cluster_are_accessible_only_to_its_brokers(
    secured: LocalCluster,
) -> None:
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


def test_secrets_are_in_private_files_and_not_visible_in_processes(secured: LocalCluster) -> None:
    folder = secured.directory / "security"
    assert folder.stat().st_mode & 0o777 == secured.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    folders = list(secured.directory.glob("broker-*/data"))
    assert len(folders) == 3
    for path in (each for data in folders for each in (data, *data.rglob("*"))):
        assert not path.stat().st_mode & 0o077, path
    security, _ = take_security({"client_config": str(secured.client_config)})
    assert security is not None and isinstance(security.secret, Secret)
    hidden = [security.secret.reveal(), (folder / "zookeeper.secret").read_text().strip()]
    for process in secured.facts()["processes"]:
        for file in ("cmdline", "environ"):
            text = Path(f"/proc/{process}/{file}").read_bytes()
            assert not any(secret.encode() in text for secret in hidden)
    for log in secured.directory.rglob("*.log"):
        assert not any(secret in log.read_text("utf-8", "replace") for secret in hidden), log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_of_the_machine_cannot_read_cluster_files_or_process_memory(
    secured: LocalCluster,
) -> None:
    public = secured.directory.parent / "public"
    public.write_bytes(b"readable")
    public.chmod(0o644)
    paths = [public, *(path for path in secured.directory.rglob("*") if path.is_file())]
    for process in secured.facts()["processes"]:
        paths += [Path(f"/proc/{process}/{name}") for name in ("environ", "mem", "maps")]
    assert len(paths) > 50
    assert read_as_nobody(paths) == [public]


def read_as_nobody(paths: list[Path]) -> list[Path]:
    """Return the files that a user without any permission can open and read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            for number, path in enumerate(paths):
                with contextlib.suppress(OSError), path.open("rb") as file:
                    if file.read(1):
                        os.write(writer, b"%d\n" % number)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as numbers:
        found = [paths[int(line)] for line in numbers]
    assert os.waitpid(child, 0)[1] == 0
    return found


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
def test_commands_and_programs_find_the_login_of_a_secured_cluster_without_options(
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


def test_command_up_secure_requires_logins_on_a_formerly_open_cluster(tmp_path: Path) -> None:
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
def test_spark_on_this_machine_finds_the_login_of_a_secured_cluster_without_options(
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
