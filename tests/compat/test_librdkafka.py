"""Run librdkafka's own tests, unchanged, on three brokers.

An npm package contains librdkafka's source with its tests, which the installed compiler builds in
about three minutes. Without npm, make or a C++ compiler, these tests are skipped. librdkafka's test
runner runs four tests at a time. A failed test runs again alone, because some tests measure time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.client_programs import JAVA, LIBRDKAFKA, Note, OwnNote
from support.fetched import fetched

from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_java

pytestmark = [pytest.mark.compat, pytest.mark.timeout(3600)]

SOURCE = "package/deps/librdkafka/"
BUILD_SECONDS = 1800
RUN_SECONDS = 1800
OUTPUT_LINES = 40
AS_KAFKA = "4.3.0.0"
"""The Kafka version that librdkafka's tests assume for the brokers."""

SETTINGS = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "100",
}
"""The broker settings of the Kafka cluster with which librdkafka's authors run the tests."""

NOT_BUILT = {
    "compacted topics": ("0077",),
    "share groups": (
        "0170", "0171", "0172", "0173", "0174", "0175", "0176", "0177", "0178", "0179", "0180",
        "0181", "0184", "0185",
    ),
}  # fmt: skip
"""Numbers of librdkafka's tests for features that logbus lacks; the README lists them."""

IN_PARTS = {
    "0011": (
        "test_single_partition", "test_partitioner", "test_per_message_partition_flag",
        "test_message_partitioner_wo_per_message_flag",
    ),
    "0081": (
        "unclean_destroy", "DeleteTopics", "CreatePartitions",
        "DescribeConfigs", "DeleteRecords", "ListConsumerGroups", "DescribeConsumerGroups",
        "DescribeTopics", "DescribeCluster", "DeleteGroups", "DeleteConsumerGroupOffsets",
        "ListOffsets", "AlterConsumerGroupOffsets",
        "ListConsumerGroupOffsets", "UserScramCredentials",
    ),
}  # fmt: skip
"""For tests that logbus supports only in part, the parts that run.

The other parts need compacted topics or ``compression.type=lz4``, which logbus lacks.
"""

ACL_PARTS = ("CreateAcls", "DescribeAcls", "DeleteAcls")
"""Parts of librdkafka's test 0081 that need an authorizer."""

NEEDS_SCRIPTS = ("0098",)
"""Tests that start Java programs with the scripts of a Kafka installation."""

NEEDS_OPEN_AUTHORIZER = ("0109", "0115", "0119")
"""Tests in which ACLs deny topics to clients without a login.

Brokers accept ``authorizer=enforce`` only if they identify each other on a listener of their own,
and the cluster of these tests has one listener. ``test_java_security.py`` tests denied clients.
"""

Run = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build librdkafka's test runner; return the folder of its tests."""
    for tool in ("make", "gcc", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed, and librdkafka's tests are built with it")
    folder = tmp_path_factory.mktemp("librdkafka")
    fetched(["npm", "pack", "--silent", LIBRDKAFKA], folder, "librdkafka's source")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as source:
        wanted = [member for member in source if member.name.startswith(SOURCE)]
        source.extractall(folder, wanted, filter="data")
    root = folder / SOURCE
    for command in (
        ["./configure"],
        *(["make", "-j2", "-C", part] for part in ("src", "src-cpp")),
        ["make", "-j2", "-C", "tests", "build"],
    ):
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return root / "tests"


@pytest.fixture(scope="module")
def kafka_path(tmp_path_factory: pytest.TempPathFactory, class_path: str) -> Path:
    """Return a folder with ``bin/kafka-topics.sh``, which runs Kafka's own tool from Maven.

    librdkafka's tests call this script.
    """
    folder = tmp_path_factory.mktemp("kafka")
    script = folder / "bin" / "kafka-topics.sh"
    script.parent.mkdir()
    log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
    jvm = f"'{find_java()}' -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m '{log}'"
    tool = "org.apache.kafka.tools.TopicCommand"
    script.write_text(f"#!/bin/sh\nexec {jvm} -cp '{class_path}' {tool} \"$@\"\n", "utf-8")
    script.chmod(0o755)
    return folder


@pytest.fixture
def run(
    built: Path, kafka_path: Path, make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> Run:
    """Return a function that runs librdkafka's tests on a new cluster.

    The function returns the state of each test that ran.
    """

    def start(scenario: str, authorizer: str) -> dict[str, str]:
        creates = "false" if scenario == "noautocreate" else "true"
        own = {"auto.create.topics.enable": creates, "authorizer": authorizer}
        cluster = make_cluster(3, config={**SETTINGS, **own})
        servers = cluster.bootstrap_servers
        (tmp_path / "test.conf").write_text(
            f"test.timeout.multiplier=2\nbootstrap.servers={servers}\n", "utf-8"
        )
        return {
            **os.environ,
            "BROKERS": servers,
            "KAFKA_PATH": str(kafka_path),
            "LD_LIBRARY_PATH": f"{built.parent / 'src'}:{built.parent / 'src-cpp'}",
            "RDKAFKA_TEST_CONF": str(tmp_path / "test.conf"),
            "TEST_KAFKA_VERSION": AS_KAFKA,
            "TEST_REPORT": str(tmp_path / "report.json"),
            "TEST_SCENARIO": scenario,
        }

    started: dict[tuple[str, str], dict[str, str]] = {}

    def call(
        scenario: str = "default", *, at_once: int = 4, authorizer: str = "off", **environment: str
    ) -> dict[str, str]:
        kind = scenario, authorizer
        if kind not in started:
            started[kind] = start(*kind)
        with (tmp_path / "output").open("a") as output:
            subprocess.run(
                ["./test-runner", "-L", "-Q", "-E", "-K", f"-p{at_once}"],
                cwd=built,
                env={**started[kind], **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=RUN_SECONDS,
            )
        report = json.loads((tmp_path / "report.json").read_text("utf-8"))
        states = {name: row["state"] for name, row in report["tests"].items()}
        return {
            name: state for name, state in states.items() if state not in ("DNS", "SKIPPED")
        } | {"<MAIN>": "PASSED"}

    return call


def said(folder: Path, name: str) -> str:
    """Return the last lines that one of librdkafka's tests printed."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "output").read_text("utf-8", "replace"))
    return "\n".join([line for line in output.splitlines() if name in line][-OUTPUT_LINES:])


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["librdkafka suite"], asked, answer)


@pytest.mark.parametrize("scenario", ["default", "noautocreate"])
def test_librdkafka_tests_pass_except_for_unsupported_features(
    scenario: str, run: Run, note: OwnNote, tmp_path: Path
) -> None:
    left_out = {number for numbers in NOT_BUILT.values() for number in numbers}
    left_out |= {*IN_PARTS, *NEEDS_SCRIPTS, *NEEDS_OPEN_AUTHORIZER}
    states = run(scenario, TESTS_SKIP=",".join(sorted(left_out)))
    for name in [name for name, state in states.items() if state != "PASSED"]:
        again = run(scenario, at_once=1, TESTS=name[:4])
        assert again[name] == "PASSED", said(tmp_path, name)
    count = len(states) - 1
    assert count > (60 if scenario == "default" else 3), states
    note(f"its tests with brokers, scenario {scenario}", f"all pass ({count})")
    if scenario == "default":
        for feature, numbers in NOT_BUILT.items():
            note(f"tests {', '.join(numbers)}", f"left out: {feature} (not built)")
        note(f"tests {', '.join(NEEDS_SCRIPTS)}", "left out: they need an installation of Kafka")
        reason = "left out: they need ACLs for clients without a login (not tried)"
        note(f"tests {', '.join(NEEDS_OPEN_AUTHORIZER)}", reason)


@pytest.mark.parametrize("authorizer", ["off", "report"])
def test_supported_parts_of_other_librdkafka_tests_pass(
    authorizer: str, run: Run, note: OwnNote, tmp_path: Path
) -> None:
    for number, parts in (IN_PARTS if authorizer == "off" else {"0081": ACL_PARTS}).items():
        for part in parts:
            states = run(TESTS=number, SUBTESTS=part, at_once=1, authorizer=authorizer)
            (name,) = states.keys() - {"<MAIN>"}
            assert states[name] == "PASSED", said(tmp_path, name)
            assert f"{part}" in said(tmp_path, name), "no part of that name ran"
        note(f"test {number}: {', '.join(parts)}", "all pass")
