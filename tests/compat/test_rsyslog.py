"""Test rsyslog's output module omkafka, unchanged, from its Debian package.

rsyslog follows a file, as a log shipper does, and sends its lines as records, which Spark reads.
Each run ends when the records are in the topic.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.client_programs import Note
from support.member_process import eventually
from support.spark_queries import Queries

from broker_lite import client
from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(200)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
CONFIG = """
global(workDirectory="{folder}")
module(load="imfile")
module(load="omkafka")
template(name="json" type="list") {{
  constant(value="{{\\"m\\":\\"") property(name="msg" format="json") constant(value="\\"}}")
}}
template(name="key" type="string" string="%syslogtag%")
input(type="imfile" file="{folder}/app.log" tag="app")
action(type="omkafka" broker=["{brokers}"] topic="{topic}" template="json" key="key"
  dynakey="on" partitions.auto="on" action.resumeRetryCount="-1" errorFile="{folder}/errors"
  confParam=["compression.codec={codec}", "queue.buffering.max.ms=5"])
"""


@pytest.fixture(scope="module")
def rsyslogd() -> str:
    program = shutil.which("rsyslogd") or shutil.which("rsyslogd", path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip("rsyslogd is not installed: apt-get install rsyslog-kafka")
    return program


@pytest.fixture
def ship(
    rsyslogd: str, cluster: LocalCluster, tmp_path: Path
) -> Iterator[Callable[[str, str], Path]]:
    """Yield a function that starts rsyslogd, which follows the file app.log of a new folder.

    The function returns the folder.
    """
    running: list[subprocess.Popen[bytes]] = []

    def start(topic: str, codec: str) -> Path:
        folder = tmp_path / codec
        folder.mkdir()
        (folder / "app.log").write_text("before it ran\n")
        brokers = cluster.bootstrap_servers.replace(",", '","')
        config = CONFIG.format(folder=folder, brokers=brokers, topic=topic, codec=codec)
        (folder / "rsyslog.conf").write_text(config)
        arguments = [rsyslogd, "-n", "-f", str(folder / "rsyslog.conf"), "-i", str(folder / "pid")]
        with (folder / "out").open("wb") as out:
            running.append(subprocess.Popen(arguments, stdout=out, stderr=out))
        return folder

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize("codec", CODECS)
def test_rsyslog_ships_log_lines(
    codec: str,
    ship: Callable[[str, str], Path],
    rsyslogd: str,
    bus: Bus,
    spark: Any,
    tmp_path: Path,
    answered: Note,
) -> None:
    topic = f"rsyslog-{os.getpid()}-{codec}"
    bus.create_topic(topic, partitions=2)
    folder = ship(topic, codec)
    records: list[client.Record] = []
    with bus.consumer(topic, start="earliest") as consumer:

        def arrived(count: int) -> bool:
            records.extend(consumer.poll(0.2))
            return len(records) >= count

        eventually(lambda: arrived(1), lambda: (folder / "out").read_text())
        lines = [f'line {n} with "quotes"' for n in range(200)]
        with (folder / "app.log").open("a") as log:
            log.writelines(f"{line}\n" for line in lines)
        eventually(lambda: arrived(201), lambda: (folder / "out").read_text())
    assert not (folder / "errors").exists()
    assert {record.key for record in records} == {b"app"}
    shipped = sorted(json.loads(record.value or b"")["m"] for record in records)
    assert shipped == sorted(["before it ran", *lines])
    rows = Queries(spark, bus, tmp_path).read(subscribe=topic).select("key", "value").collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in rows) == sorted(
        (record.key, record.value) for record in records
    )
    said = subprocess.run([rsyslogd, "-v"], capture_output=True, text=True, check=True).stdout
    version = re.findall(r"rsyslogd\s+(\S+)", said)[0]
    asked = f"lines of a file with keys, read by Spark as columns: {codec}"
    answered(f"rsyslog {version} omkafka", asked, "served")
