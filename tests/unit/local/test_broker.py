"""Tests of ``logbus broker --begin-fd``: the process imports modules, then waits for a byte that
permits the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_broker_creates_no_files_if_its_parent_dies_before_the_start_signal(
    tmp_path: Path,
) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"broker.id=0\nlog.dir={tmp_path / 'data'}\n", "utf-8")
    read_end, write_end = os.pipe()
    command = [sys.executable, "-P", "-m", "broker_lite", "broker", "--config", str(config)]
    with subprocess.Popen(
        [*command, "--begin-fd", str(read_end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(read_end,),
    ) as process:
        os.close(read_end)
        os.close(write_end)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, b"")
    assert os.listdir(tmp_path) == ["broker.conf"]
