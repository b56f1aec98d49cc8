"""What README.md tells people to type does what it says: its blocks are run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker_lite.client import connect

START_S = 200
"""Spark's start and a first batch take ten seconds of a core; a busy machine has none to spare."""
README = Path(__file__).parent.parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)


def commands(*words: str) -> list[list[str]]:
    """The README's ``logbus`` lines that begin so."""
    lines = [
        shlex.split(line, comments=True) for block in blocks("sh") for line in block.split("\n")
    ]
    return [line[1:] for line in lines if line[: len(words) + 1] == ["logbus", *words]]


def script(marker: str, folder: Path, **replaced: str) -> Path:
    (found,) = [block for block in blocks("python") if marker in block]
    for old, new in replaced.values():
        assert old in found
        found = found.replace(old, new)
    path = folder / "readme.py"
    path.write_text(found)
    return path


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYSPARK_PYTHON": sys.executable} | more


def test_python(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script("LocalCluster", tmp_path))],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    acknowledged, record = done.stdout.splitlines()
    assert acknowledged == "0"
    assert re.fullmatch(r"\d 0 b'k' b'hello'", record)


@pytest.mark.timeout(300)
def test_spark(make_cluster, tmp_path: Path) -> None:
    servers = make_cluster(1).bootstrap_servers
    for words in commands("topic", "create"):
        subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", *words],
            check=True,
            timeout=60,
            env=environment(LOGBUS_BOOTSTRAP_SERVERS=servers),
        )
    path = script(
        "writeStream",
        tmp_path,
        address=("127.0.0.1:9092", servers),
        checkpoint=("/tmp/checkpoint", str(tmp_path / "checkpoint")),
    )
    with (
        connect(servers) as bus,
        (tmp_path / "output.log").open("wb") as output,
        subprocess.Popen(
            [sys.executable, str(path)],
            stdout=output,
            stderr=output,
            env=environment(SPARK_LOCAL_IP="127.0.0.1"),
            cwd=tmp_path,
        ) as running,
    ):
        try:
            with bus.producer() as producer:
                producer.send("events", b"hello", key=b"k").result(30)
            found, deadline = [], time.monotonic() + START_S
            with bus.consumer("upper", start="earliest") as consumer:
                while not found and running.poll() is None and time.monotonic() < deadline:
                    found = consumer.poll(0.5)
            assert [(record.key, record.value) for record in found] == [(b"k", b"HELLO")]
            running.send_signal(signal.SIGINT)
            running.wait(60)
        finally:
            running.kill()
            print((tmp_path / "output.log").read_text())  # shown where the test fails
