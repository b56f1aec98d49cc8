"""The demo as a user runs it, on a small file: it ends with 0 and every figure agrees."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def demo(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "broker_lite", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment | {"TMPDIR": str(folder)},
        timeout=170,
    )


@pytest.mark.timeout(180)
def test_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    line = '::1 - - [17/May/2015:10:{:02}:03 +0000] "GET / HTTP/1.1" {} 7 "-" "-"\n'
    lines = [line.format(n // 100, 500 if n % 10 == 0 else 200) for n in range(2000)]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    done = demo("--file", str(path), "--brokers", "2", "--seconds", "3", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"  2,000  ok$", done.stdout, re.MULTILINE)) == 5
    assert re.search(r"^  200 +1,800$", done.stdout, re.MULTILINE)
    assert re.search(r"^  500 +200$", done.stdout, re.MULTILINE)
    offsets = re.findall(r"/consumers/demo/offsets/demo\.lines/\d +(\d+)", done.stdout)
    assert sum(map(int, offsets)) == 2000
    assert done.stderr == ""
    assert os.listdir(tmp_path) == [path.name]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"line\n" * 1000)[:-10])
    done = demo("--file", "cut.gz", folder=tmp_path)
    assert done.returncode == 1
    assert "Error: " in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert demo("--file", "nosuch.log", folder=tmp_path).returncode == 2
