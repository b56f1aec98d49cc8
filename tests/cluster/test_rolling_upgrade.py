"""Upgrade brokers of an older commit one by one under load; downgrade them; upgrade them again.

The test takes the older commit from the git history. Without the history it is skipped.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from support.patience import until

from broker_lite.bus import Bus, connect
from broker_lite.errors import LogbusError
from broker_lite.local import cluster as local_cluster
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.guard import Guard

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
OLD = "4d302d8"
"""The last commit without transactions."""
WAIT_S = 60.0
REFUSED_S = 5.0
"""Seconds for which librdkafka tries to initialise a transactional id."""
PARTITIONS = 4


class VersionedBroker(LocalBroker):
    """A broker process that runs this version of logbus, or the version in the folder ``code``."""

    code: Path | None = None

    def __init__(self, guard: Guard, *given: Any, **options: Any) -> None:
        super().__init__(guard, *given, **options)
        self._guard = _OldGuard(self, guard)  # type: ignore[assignment]

    def restart(self, code: Path | None) -> None:
        self.stop()
        self.code = code
        self.start()


class _OldGuard:
    """Starts a broker of either version; the old version gets no option --output, which it does not
    know."""

    def __init__(self, broker: VersionedBroker, guard: Guard) -> None:
        self._broker, self._guard = broker, guard

    def spawn(self, command: Sequence[str], log: Path, *, pass_fds: Sequence[int]) -> Any:
        environment = None
        if self._broker.code is not None:
            at = command.index("--output")
            command = [*command[:at], *command[at + 2 :]]
            environment = os.environ | {"PYTHONPATH": str(self._broker.code)}
        return self._guard.spawn(command, log, pass_fds=pass_fds, environment=environment)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Check out the old version's package; return its folder."""
    command = ["git", "-C", str(ROOT), "archive", OLD, "broker_lite"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"commit {OLD} is not here: {done.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def running(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[VersionedBroker]]:
    """Start three brokers of the old version."""
    monkeypatch.setattr(local_cluster, "LocalBroker", VersionedBroker)
    monkeypatch.setattr(VersionedBroker, "code", old)
    with LocalCluster(3, directory=tmp_path / "cluster") as cluster:
        yield [broker for broker in cluster.brokers if isinstance(broker, VersionedBroker)]


class Load:
    """An idempotent producer that sends numbers until it is stopped."""

    def __init__(self, servers: str) -> None:
        self._producer = ck.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self.failures: list[Any] = []
        self.sent = self.acknowledged = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> int:
        """Stop sending. Check that all sent numbers were acknowledged, and return their count."""
        self.close()
        assert self._producer.flush(WAIT_S) == 0
        assert (self.failures, self.acknowledged) == ([], self.sent)
        return self.sent

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def go_on(self) -> None:
        """Wait until a number that is sent after this call is acknowledged."""
        sent = self.sent
        until(lambda: self.acknowledged, lambda found: found > sent)

    def _run(self) -> None:
        while not self._is_over.wait(0.002):
            value = b"%d" % self.sent
            self._producer.produce(
                "t", value, partition=self.sent % PARTITIONS, callback=self._done
            )
            self.sent += 1
            self._producer.poll(0)

    def _done(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(error)


def in_sync(bus: Bus) -> bool:
    """Return whether each partition has three in-sync replicas."""
    try:
        rows = bus.admin.cluster().topics["t"].partitions
    except LogbusError:
        return False
    return [len(row.isr) for row in rows] == [3] * PARTITIONS


def is_served(servers: str) -> bool:
    """Commit a transaction; return False if the brokers refuse transactions."""
    producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": "x", "log_level": 0})
    try:
        producer.init_transactions(REFUSED_S)
    except ck.KafkaException:
        return False
    producer.begin_transaction()
    producer.produce("in-transactions", b"v", partition=0)
    producer.commit_transaction(WAIT_S)
    return True


def test_brokers_are_upgraded_and_downgraded_under_load_without_loss(
    running: list[VersionedBroker], old: Path
) -> None:
    servers = ",".join(broker.endpoint for broker in running)
    with connect(servers) as bus:
        bus.create_topic("t", partitions=PARTITIONS, replication_factor=3)
        bus.create_topic("in-transactions", partitions=1, replication_factor=3)
        load = Load(servers)
        try:
            steps = [(0, None), (1, None), (1, old), (0, old), (0, None), (1, None), (2, None)]
            for number, (broker, code) in enumerate(steps):
                running[broker].restart(code)
                until(lambda: in_sync(bus), what=f"step {number}: {broker} {code}")
                load.go_on()
                if number == 1:
                    assert not is_served(servers), "new format before the last upgrade"
            until(lambda: is_served(servers))
            count = load.stop()
        finally:
            load.close()
        found: list[int] = []
        with bus.consumer("t", start="earliest") as consumer:
            while len(found) < count:
                rows = consumer.poll(WAIT_S)
                assert rows, f"{len(found)} of {count}"
                found += [int(row.value or b"") for row in rows]
        assert sorted(found) == list(range(count))
