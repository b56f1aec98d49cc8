"""Test transactions of Kafka clients for Node and Go.

The tests run with stable connections, and with connections that close before each transaction ends.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.client_programs import GO_MODULES, NODE, Note, Steps, go_command
from support.fetched import fetched

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

RECORDS = "20000"
COMMITTED = [b"0", b"2", b"4"]
"""The values of transactions 0, 2 and 4; transactions 1 and 3 abort."""
OWN_TESTS = ("range", "cooperative-sticky")
"""Cases of franz-go's TestTxnEtl for the classic group protocol."""

connections = pytest.mark.parametrize("connection", ["kept", "reconnect"])


@pytest.fixture
def topic(bus: Bus, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^\w-]", "-", f"{request.node.name}{os.getpid()}")
    bus.create_topic(name, partitions=1)
    return name


def assert_three_committed(bus: Bus, topic: str) -> None:
    found: list[bytes | None] = []
    with bus.consumer(topic, start="earliest") as consumer:
        while len(found) < len(COMMITTED):
            rows = consumer.poll(30.0)
            assert rows, found
            found += [row.value for row in rows]
    assert found == COMMITTED


def asked(connection: str) -> str:
    closed = ", with connections closed before each end" if connection == "reconnect" else ""
    return f"transactions: commit, abort{closed}"


@connections
def test_kafkajs_commits_and_aborts_transactions(
    cluster: LocalCluster, bus: Bus, topic: str, node_folder: Path, answered: Note,
    versions: dict[str, str], connection: str,
) -> None:  # fmt: skip
    program = str(NODE / "transactions.mjs")
    Steps(["node", program, cluster.bootstrap_servers, topic, connection], node_folder)
    assert_three_committed(bus, topic)
    answered(versions["kafkajs"], asked(connection), "served")


@connections
@pytest.mark.parametrize("client", ["sarama", "old sarama"])
def test_sarama_commits_and_aborts_transactions(
    cluster: LocalCluster, bus: Bus, topic: str, go_program: Callable[[str], str], answered: Note,
    versions: dict[str, str], client: str, connection: str,
) -> None:  # fmt: skip
    Steps([go_program(client), "transactions", cluster.bootstrap_servers, topic, connection])
    assert_three_committed(bus, topic)
    answered(versions[client], asked(connection), "served")


def test_franz_go_passes_its_own_transaction_test(
    cluster: LocalCluster, go_program: Callable[[str], str], tmp_path: Path, answered: Note,
    versions: dict[str, str],
) -> None:  # fmt: skip
    """The test chains three groups that consume, transform and produce in transactions."""
    program = str(Path(go_program("franz-go")).with_name("own-tests"))
    module = GO_MODULES["franz-go"]
    package = "github.com/twmb/franz-go/pkg/kgo"
    build = [go_command(), "test", "-c", f"-modfile={module.name}", "-o", program, package]
    fetched(build, Path(program).parent, "franz-go's own tests")
    done = subprocess.run(
        [program, "-test.v", "-test.timeout=300s",
         f"-test.run=^TestTxnEtl$/^({'|'.join(OWN_TESTS)})$"],
        env={**os.environ, "KGO_SEEDS": cluster.bootstrap_servers, "KGO_TEST_RECORDS": RECORDS,
             "KGO_LOG_LEVEL": "none"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    for case in OWN_TESTS:
        assert f"--- PASS: TestTxnEtl/{case}" in done.stdout, done.stdout[-4000:]
    answered(versions["franz-go"], f"its own TestTxnEtl: {', '.join(OWN_TESTS)}", "passed")
