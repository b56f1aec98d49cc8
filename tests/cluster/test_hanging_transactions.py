"""A transaction that no coordinator knows, and the commands that free its readers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import confluent_kafka as ck
import pytest

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TRANSACTION_STATE

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

WAIT_S = 30.0


def test_transaction_whose_coordinator_lost_its_state_is_found_and_aborted(tmp_path: Path) -> None:
    """The only copy of the coordinator's state is lost; the topic's log has an open transaction."""
    with LocalCluster(1, directory=tmp_path) as cluster:
        (broker,), servers = cluster.brokers, cluster.bootstrap_servers

        def run(*words: str) -> str:
            command = [sys.executable, "-m", "broker_lite", "transactions", *words, "-b", servers]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            return done.stdout + done.stderr

        with connect(servers) as bus:
            bus.create_topic("t", partitions=1)
            producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": "lost"})
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            producer.produce("t", b"hidden", partition=0)
            assert producer.flush(WAIT_S) == 0
            topic_id = bus.cluster().topics[TRANSACTION_STATE].topic_id
            broker.stop()
            lost = list(tmp_path.glob(f"broker-*/data/{topic_id}-*"))
            assert len(lost) == 6
            for folder in lost:
                shutil.rmtree(folder)
            broker.start()
            with bus.producer() as sender:
                sender.send("t", b"behind").result(WAIT_S)
            with bus.consumer("t", start="earliest") as consumer:
                assert consumer.poll(0.5) == []
                assert "there is no transactional id" in run("list")
                assert "no transaction hangs" in run("hanging", "-t", "t")
                assert json.loads(run("hanging", "-t", "t", "--idle", "0"))["start_offset"] == 0
                assert "aborted" in run("abort", "t", "0", "--start-offset", "0", "--yes")
                assert [row.value for row in consumer.poll(WAIT_S)] == [b"behind"]
            assert "no transaction hangs" in run("hanging", "-t", "t", "--idle", "0")
