"""Test the sampler of the console and of ``logbus top``, which reads the state of a cluster
repeatedly."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

from support.patience import until

from broker_lite.bus import Bus
from broker_lite.client import Admin
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.observing.reading import WHOLE_S, ClusterReading, take_reading
from broker_lite.observing.sampler import RECORDS, Sampler


def test_periodic_sample_of_a_cluster_contains_topics_groups_and_rates(
    bus: Bus, topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    bus.admin.commit_offsets(f"g-{topic}", {tp: 0})
    sampler = Sampler(bus.admin).start()
    try:
        sampler.wait(30)
        with bus.producer() as producer:
            for _ in range(50):
                producer.send(topic, b"value", partition=0)
        sampler.read_again(30)
        reading = sampler.reading
        assert isinstance(reading, ClusterReading)
        row, group = reading.topics[topic], reading.groups[f"g-{topic}"]
        assert (row.partitions, row.records, row.lag, row.unhealthy) == (3, 50, 50, 0)
        assert row.records_per_s > 0 and row.size_bytes > 0
        assert (group.kind, group.members, group.lag, group.topics) == (
            "Offsets only",
            0,
            50,
            (topic,),
        )
        assert len(sampler.totals.values(RECORDS)) == 2
        assert sampler.topics.values(topic)[-1] > 0
        assert sampler.failure == "" and sampler.age_s < 60
    finally:
        sampler.stop()


def test_console_reads_log_sizes_and_start_offsets_less_often_than_end_offsets(
    bus: Bus, topic: str
) -> None:
    tp = TopicPartition(topic, 0)

    def send(name: str, count: int) -> None:
        with bus.producer() as producer:
            for _ in range(count):
                producer.send(name, b"value", partition=0)

    send(topic, 5)
    first = take_reading(bus.admin)
    send(topic, 10)
    bus.admin.delete_records({tp: 3})
    second = take_reading(bus.admin, first)
    assert (second.starts[tp], second.ends[tp]) == (0, 15)
    assert second.topics[topic].size_bytes == first.topics[topic].size_bytes > 0
    whole = take_reading(bus.admin, second, is_whole=True)
    assert (whole.starts[tp], whole.ends[tp], whole.topics[topic].records) == (3, 15, 12)
    assert whole.topics[topic].size_bytes > second.topics[topic].size_bytes
    assert first.whole_ms == second.whole_ms < whole.whole_ms

    # A new topic is read at once, also if it has the name of a deleted one.
    bus.delete_topic(topic)
    bus.create_topic(topic, partitions=1)
    send(topic, 2)
    last = take_reading(bus.admin, whole)
    assert (last.starts[tp], last.ends[tp]) == (0, 2)
    assert 0 < last.topics[topic].size_bytes < whole.topics[topic].size_bytes
    overdue = last._replace(whole_ms=last.whole_ms - 1000 * WHOLE_S)
    assert take_reading(bus.admin, overdue).whole_ms > last.whole_ms


def test_sampler_keeps_its_last_sample_of_the_cluster_while_no_broker_answers(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(1)
    with Admin(cluster.bootstrap_servers, timeout_ms=1000) as admin:
        sampler = Sampler(admin, interval_s=0.05).start()
        try:
            sampler.wait(30)
            reading = sampler.reading
            assert reading is not None and reading.state == "ok"
            cluster.brokers[0].kill()
            until(lambda: sampler.failure, what="the failed look")
            assert sampler.reading is not None and "no broker answers" in sampler.failure
            cluster.brokers[0].start()
            until(lambda: not sampler.failure, what="a new reading")
        finally:
            sampler.stop()


def test_command_top_sorts_and_filters_by_keys_and_ends_with_q(
    bus: Bus, cluster: LocalCluster, topic: str
) -> None:
    """On a terminal of 120 columns."""
    other = f"{topic}-other"
    bus.create_topic(other, partitions=1)
    command = [sys.executable, "-m", "broker_lite", "top", "-b", cluster.bootstrap_servers]
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 120, 0, 0))
    running = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    screens = Screens(master)
    try:
        # Before its first screen, the program discards the keys that were pressed.
        screens.until(lambda text: "Topics" in text)
        os.write(master, f"/{topic}\rn".encode())
        screens.until(lambda text: 0 < text.find(f"{topic} ") < text.find(other))
        os.write(master, f"/{other}\r".encode())
        screens.until(lambda text: other in text and f"{topic} " not in text)
        os.write(master, b"q")
        assert running.wait(30) == 0
    finally:
        running.kill()
        os.close(master)


class Screens:
    """The screens that a program draws on a pseudo-terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._text = ""

    def until(self, holds: Callable[[str], bool]) -> None:
        """Read until the condition holds for the newest whole screen."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            if select.select([self._master], [], [], 1.0)[0]:
                self._text += os.read(self._master, 65536).decode(errors="replace")
            # A screen begins with the cursor at home.
            screens = self._text.split("\x1b[H")
            if len(screens) > 1 and holds(screens[-2]):
                return
        raise AssertionError(f"the screen never came; the last one: {self._text[-3000:]}")


def test_command_top_prints_its_view_once_and_exits_if_its_output_is_a_pipe(
    bus: Bus, cluster: LocalCluster, topic: str
) -> None:
    command = [sys.executable, "-m", "broker_lite", "top", "-b", cluster.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert topic in done.stdout and "3 brokers" in done.stdout and "Groups" in done.stdout


def test_command_top_prints_a_long_group_name_with_special_characters_in_full(
    bus: Bus, cluster: LocalCluster, topic: str
) -> None:
    """Regression: a name with brackets ended ``top`` with a traceback. When the output was a
    pipe, ``top`` cut names as on a terminal of 80 columns."""
    name = f"[/b] \x1b[2J{'x' * 80}"
    bus.admin.commit_offsets(name, {TopicPartition(topic, 0): 0})
    command = [sys.executable, "-m", "broker_lite", "top", "-b", cluster.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert name.replace("\x1b", r"\x1b") in done.stdout
    bus.admin.delete_group(name)


def test_command_top_prints_brokers_topics_and_groups_as_json(
    cluster: LocalCluster, topic: str
) -> None:
    command = [sys.executable, "-m", "broker_lite", "top", "-b", cluster.bootstrap_servers]
    done = subprocess.run(
        [*command, "-o", "json"], capture_output=True, text=True, timeout=60, check=True
    )
    view = json.loads(done.stdout)
    assert [row["running"] for row in view["brokers"]] == [True] * 3
    assert topic in [row["name"] for row in view["topics"]]
    done = subprocess.run(
        [*command, "-o", "csv"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("name,partitions,")
