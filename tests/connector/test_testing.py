"""Test logbus's pytest plugin for users, in a separate pytest run as in a user's project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from support.patience import until

from broker_lite.bus import connect
from broker_lite.local.process import start_mark

TESTS = """
import pytest

@pytest.mark.logbus(brokers=2)
def test_pytest_fixtures_start_a_cluster(logbus_bus, logbus, logbus_topic, logbus_cluster):
    assert logbus is logbus_bus
    with logbus_bus.producer() as producer:
        assert producer.send(logbus_topic, b"x").result().offset == 0
    assert logbus_topic.startswith("test_pytest_fixtures_start_a_cluster")
    assert len(logbus_cluster.brokers) == 2

def test_fresh_topic_fixture_gives_an_empty_topic(logbus_bus, logbus_topics, logbus_group):
    one, two = logbus_topics(2, partitions=3)
    assert len(logbus_bus.cluster().partitions_of(two)) == 3
    assert logbus_bus.admin.lag(logbus_group) == {}

def test_killed_cluster_leaves_no_process(logbus_cluster):
    logbus_cluster.kill()
    assert not any(broker.is_running for broker in logbus_cluster.brokers)
    assert not logbus_cluster.zookeeper_server.is_running
"""

WORKER = """
import os, shutil

def test_runs_in_each_worker(logbus_bus, logbus_topic, logbus_cluster):
    assert set(logbus_bus.cluster().topics) == {logbus_topic}
    record = logbus_cluster.directory / "cluster.json"
    shutil.copy(record, os.environ["PYTEST_XDIST_WORKER"] + ".json")
"""

BOOTSTRAP = """
def test_topics_and_groups_of_a_named_cluster(logbus_bus, logbus_topic, logbus_group):
    from broker_lite.model import TopicPartition
    logbus_bus.admin.commit_offsets(logbus_group, {TopicPartition(logbus_topic, 0): 0})
"""


def run_pytest(tmp_path, text, *words, **environment):
    (tmp_path / "test_mine.py").write_text(text)
    # pytest loads the plugin of an installed package itself, and refuses to load it twice.
    installed = entry_points(group="pytest11", name="logbus")
    plugin = [] if installed else ["-p", "pyspark_logbus.testing"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *plugin, "-p", "no:spark", "-p",
         "no:cacheprovider", "--strict-markers", *words, "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env=os.environ | environment,
    )  # fmt: skip


def test_pytest_plugin_runs_a_users_test_of_a_stream(tmp_path):
    done = run_pytest(tmp_path, TESTS)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_each_worker_of_pytest_xdist_has_its_own_cluster_which_ends_with_the_worker(tmp_path):
    pytest.importorskip("xdist")
    done = run_pytest(tmp_path, WORKER, "-n", "2", "--dist", "each")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    facts = [json.loads((tmp_path / f"gw{number}.json").read_text()) for number in range(2)]
    assert len({each["bootstrap_servers"] for each in facts}) == 2
    assert len({each["zookeeper"] for each in facts}) == 2
    processes = [item for each in facts for item in each["processes"].items()]
    assert len(processes) >= 4
    until(lambda: all(start_mark(int(pid)) != mark for pid, mark in processes))


def test_pytest_plugin_leaves_no_topics_or_groups_on_an_existing_cluster(tmp_path, cluster):
    with connect(cluster.bootstrap_servers) as bus:
        before = set(bus.cluster().topics), {row.group for row in bus.admin.list_groups()}
        key = f"logbus_bootstrap={cluster.bootstrap_servers}"
        for words in (("--logbus-bootstrap", cluster.bootstrap_servers), ("-o", key)):
            done = run_pytest(tmp_path, BOOTSTRAP, *words)
            assert "1 passed" in done.stdout, done.stdout + done.stderr
        left = {name for name in bus.cluster().topics if name.startswith("test_topics_and_groups")}
        assert not left - before[0]
        groups = {row.group for row in bus.admin.list_groups()} - before[1]
        assert not {name for name in groups if name.startswith("test_topics_and_groups")}


def test_tests_of_a_user_without_java_are_skipped_with_the_remedy(tmp_path):
    text = "def test_needs_a_cluster(logbus_topic): pass"
    nowhere = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = run_pytest(tmp_path, text, **nowhere)
    assert "1 skipped" in done.stdout and "install" in done.stdout.lower(), done.stdout
    assert "--logbus-bootstrap" in done.stdout and "--zookeeper" not in done.stdout, done.stdout
    done = run_pytest(tmp_path, text, "--logbus-require", **nowhere)
    assert "1 error" in done.stdout and "--logbus-require" in done.stdout, done.stdout


@pytest.mark.parametrize("source", ["--logbus-brokers", "logbus_brokers", "LOGBUS_TEST_BROKERS"])
def test_setting_of_zero_brokers_for_the_test_cluster_is_refused_with_a_reason(tmp_path, source):
    text = "def test_needs_a_cluster(logbus_cluster): pass"
    words = {"--logbus-brokers": (source, "0"), "logbus_brokers": ("-o", f"{source}=0")}
    environment = {source: "0"} if source.isupper() else {}
    done = run_pytest(tmp_path, text, *words.get(source, ()), **environment)
    assert "1 error" in done.stdout, done.stdout + done.stderr
    for said in (f"{source} is", "at least one broker", "give a whole number from 1"):
        assert said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("mark", ["logbus(3)", "logbus(broker=3)", "logbus(brokers='3')"])
def test_error_for_a_wrong_pytest_marker_names_the_right_marker(tmp_path, mark):
    text = f"import pytest\n@pytest.mark.{mark}\ndef test_x(): pass\n"
    done = run_pytest(tmp_path, text)
    assert done.returncode == 4 and "takes brokers=N" in done.stderr, done.stdout + done.stderr


def test_pytest_plugin_imports_nothing_slow_for_tests_that_do_not_use_it():
    code = (
        "import sys, pyspark_logbus.testing; print([m for m in sys.modules if 'broker_lite' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
