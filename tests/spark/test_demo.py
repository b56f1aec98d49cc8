"""Run the demo as a user does; it exits with 0 only if all its counts agree."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.patience import until
from support.spark_processes import QUICK_JVM, arguments, children

from broker_lite.bus import Bus, connect
from broker_lite.local.process import start_mark
from pyspark_logbus.demo import query


def command(*arguments: str, folder: Path) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return {
        "args": [sys.executable, "-P", "-m", "broker_lite", "demo", *arguments],
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": folder,
        "env": environment | QUICK_JVM | {"TMPDIR": str(folder)},
    }


def demo(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(*arguments, folder=folder), check=False, timeout=170)


@pytest.mark.timeout(180)
def test_record_counts_of_the_demo_agree_although_the_demo_kills_a_leader(tmp_path: Path) -> None:
    done = demo("--lines", "100", "--kill", "--seconds", "3", "-o", "json", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stderr
    assert re.search(r"^kill -9 of broker \d, the leader of demo.lines-0", said, re.MULTILINE)
    counts = re.findall(r"^ +([\d,]+) lines  (.+)$", said, re.MULTILINE)
    assert counts[-1] == ("500", "from the logs of the demo's own processes")
    # This user may be able to read no log of the machine. The demo's own lines always exist.
    found = sum(int(count) for count, _ in counts)
    assert 500 <= found <= 600
    assert len(re.findall(rf"  {found}  ok$", said, re.MULTILINE)) == 5
    offsets = re.findall(r"/consumers/demo/offsets/demo\.lines/\d +(\d+)", said)
    assert sum(map(int, offsets)) == found
    totals = json.loads(done.stdout)
    assert totals.pop("seconds") > 0 and sum(totals.pop("kinds").values()) == found
    assert totals.pop("agrees") and set(totals.values()) == {found}
    names = ["lines", "sent", "end_offsets", "rows_read", "counted", "committed"]
    assert list(totals) == names
    assert os.listdir(tmp_path) == []


@pytest.mark.timeout(180)
def test_demo_reports_a_record_of_another_producer_in_its_topic(tmp_path: Path) -> None:
    """The demo must fail, and name the counts that are wrong."""
    path = tmp_path / "access.log.gz"
    line = '::1 - - [17/May/2015:10:{:02}:03 +0000] "GET / HTTP/1.1" {} 7 "-" "-"\n'
    lines = [line.format(n, 500 if n % 10 == 0 else 200) for n in range(50)] * 2
    path.write_bytes(gzip.compress("".join(lines).encode()))
    started = command("--file", path.name, "--brokers", "2", "--seconds", "3", folder=tmp_path)
    with subprocess.Popen(**started) as running:
        try:
            said = ""
            while not (up := re.search(r"brokers ([\d.:,]+) were up", said)):
                line = running.stdout.readline()
                assert line, said
                said += line
            with connect(up[1]) as bus:
                until(lambda: not is_missing(bus, "demo.lines"))
                with bus.producer() as producer:
                    producer.send("demo.lines", b"a stranger's").result(30)
            out, errors = running.communicate(timeout=150)
        finally:
            running.terminate()
    assert running.returncode == 1, said + out + errors
    assert "The totals do not agree:" in out and errors == ""
    assert re.search(r"^  200 +90$", out, re.MULTILINE)
    assert re.search(r"^  500 +10$", out, re.MULTILINE)
    figures = re.findall(r"^  (\S.*?)  +(\d+)  (ok|expected 100)$", out, re.MULTILINE)
    assert figures == [
        ("lines shipped and acknowledged", "100", "ok"),
        ("end offsets of demo.lines", "101", "expected 100"),
        ("rows read by the query", "101", "expected 100"),
        ("sum of the counts", "101", "expected 100"),
        ("offsets of group demo in ZooKeeper", "101", "expected 100"),
    ]
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_no_process_and_no_file(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The test sends SIGINT while the demo sends lines, or SIGTERM while it starts processes."""
    path = tmp_path / "any.log"
    path.write_text("a line\n" * 1000)
    started = command("--file", path.name, "--brokers", "1", "--seconds", "99", folder=tmp_path)
    with subprocess.Popen(**started) as running:
        try:
            said = ""
            while "] sent" not in said and not (number == signal.SIGTERM and "Starting" in said):
                line = running.stdout.readline()
                assert line, said
                said += line
            # Wait until Spark's JVM runs too.
            until(
                lambda: any("SparkSubmit" in " ".join(arguments(p)) for p in children(running.pid))
            )
            marks = {pid: start_mark(pid) for pid in children(running.pid)}
            running.send_signal(number)
            out, errors = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 128 + number, out + errors
    assert "Stopping" in out and "The demo failed" not in out
    assert not [pid for pid, mark in marks.items() if start_mark(pid) == mark]
    assert os.listdir(tmp_path) == [path.name]


def test_demo_ends_its_jvm_after_a_signal_during_the_start_of_the_jvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a signal raised an exception inside Popen, and the demo left the JVM running."""
    begin, before = subprocess.Popen, signal.getsignal(signal.SIGINT)

    def interrupted(arguments: list[str]) -> subprocess.Popen[bytes]:
        process = begin(arguments, stdin=subprocess.PIPE)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(query, "_jvms", [])
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        query._start_jvm([sys.executable, "-c", "input()"])
    (process,) = query._jvms
    process.kill()
    process.communicate()
    assert signal.getsignal(signal.SIGINT) == before


def test_demo_without_java_starts_no_process(tmp_path: Path) -> None:
    started = command(folder=tmp_path)
    started["env"] = {key: value for key, value in started["env"].items() if key != "JAVA_HOME"}
    started["env"]["PATH"] = str(tmp_path)
    done = subprocess.run(**started, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: [LOGBUS_MISSING_DEPENDENCY] no java in JAVA_HOME or PATH")
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def is_missing(bus: Bus, topic: str) -> bool:
    found = bus.admin.cluster((topic,)).topics.get(topic)
    return found is None or found.error is not None


def test_demo_reports_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"line\n" * 1000)[:-10])
    done = demo("--file", "cut.gz", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cut.gz cannot be read: ")
    assert "Traceback" not in done.stdout + done.stderr
    assert demo("--file", "nosuch.log", folder=tmp_path).returncode == 2
