"""Tests of the guard: a process that ends a cluster's child processes when their parent has
died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import until

from broker_lite.local.guard import Guard
from broker_lite.local.process import end, is_running, memory_bytes, start_mark

PARENT = """
import os, sys, time
from pathlib import Path
from broker_lite.local.guard import Guard
log = Path(sys.argv[1])
folder = log.parent / "temporary"
(folder / "inside").mkdir(parents=True)
(folder / "inside" / "file").touch()
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
kind = stubborn if sys.argv[2] == "stubborn" else "import time; time.sleep(600)"
guard = Guard(folder, grace_s=0.5 if kind is stubborn else 8.0)
child = guard.spawn([sys.executable, "-c", kind], log)
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(600)
print(child.pid, guard._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_guard_process_ends_the_children_of_a_dead_parent_process(
    ending: int, tmp_path: Path
) -> None:
    parent, child, guard = start_parent(tmp_path, "plain")
    parent.send_signal(ending)
    parent.wait()
    until(lambda: start_mark(child) is None and start_mark(guard) is None)
    until(lambda: not (tmp_path / "temporary").exists())


def test_guard_process_ends_orphaned_children_while_a_forked_worker_survives(
    tmp_path: Path,
) -> None:
    parent, child, _ = start_parent(tmp_path, "fork")
    forked = [int(pid) for pid in children_of(parent.pid) if int(pid) != child]
    try:
        parent.kill()
        parent.wait()
        until(lambda: start_mark(child) is None)
    finally:
        for pid in forked:
            if (command := command_of(pid)) and "sleep(600)" in command:
                os.kill(pid, signal.SIGKILL)


def test_guard_process_kills_a_child_that_ignores_sigterm(
    tmp_path: Path,
) -> None:
    parent, child, _ = start_parent(tmp_path, "stubborn")
    parent.kill()
    parent.wait()
    until(lambda: not (tmp_path / "temporary").exists())
    # The guard has removed the folder, so all children must have ended.
    assert start_mark(child) is None


def test_guard_process_kills_the_remaining_children_when_it_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    guard = Guard(folder)
    child = guard.spawn([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    guard.close()
    guard.close()
    assert child.wait(10) == -signal.SIGKILL
    assert folder.is_dir()


def test_output_of_a_child_process_is_written_to_its_log_file(tmp_path: Path) -> None:
    guard = Guard()
    try:
        guard.spawn([sys.executable, "-c", "print('hello')"], tmp_path / "log").wait(10)
    finally:
        guard.close()
    assert (tmp_path / "log").read_text() == "hello\n"


def test_process_with_a_recorded_pid_counts_as_running_only_if_its_start_time_matches() -> None:
    mine = start_mark(os.getpid())
    assert mine is not None
    assert is_running(os.getpid(), mine)
    assert not is_running(os.getpid(), "another start")
    assert not is_running(os.getpid(), "")
    assert not end(os.getpid(), "another start", 0.1)
    assert start_mark(2**22 + 1) is None
    assert (memory_bytes(os.getpid()) or 0) > 1 << 20
    assert memory_bytes(2**22 + 1) is None


def test_process_that_ignores_sigterm_is_killed_after_the_grace_period() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print(1, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.read(1)
    assert end(child.pid, start_mark(child.pid) or "", 0.1)
    assert child.wait(10) == -signal.SIGKILL
    child.stdout.close()


def start_parent(tmp_path: Path, kind: str) -> tuple[subprocess.Popen[str], int, int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), kind],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        child, guard = map(int, parent.stdout.readline().split())
    return parent, child, guard


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
