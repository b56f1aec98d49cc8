"""The pytest plugin, as a user's own tests see it: in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

TESTS = """
import sys

def test_pytest_fixtures_start_a_cluster(logbus, logbus_topic, logbus_cluster):
    with logbus.producer() as producer:
        assert producer.send(logbus_topic, b"x").result().offset == 0
    assert logbus_topic.startswith("test_pytest_fixtures_start_a_cluster")
    assert len(logbus_cluster.brokers) == 1

def test_fresh_topic_fixture_gives_an_empty_topic(logbus, logbus_topic):
    assert len(logbus.cluster().partitions_of(logbus_topic)) == 1
"""


def test_user_stream_test_runs_with_the_fixtures(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    # An installed package is found by pytest itself, and a plugin may not come twice.
    installed = entry_points(group="pytest11", name="logbus")
    plugin = [] if installed else ["-p", "pyspark_logbus.testing"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:spark", "-p",
         "no:cacheprovider", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_plugin_adds_no_cost_to_other_tests():
    code = (
        "import sys, pyspark_logbus.testing; print([m for m in sys.modules if 'broker_lite' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
