"""Fixtures for tests that run ``logbus`` commands on the worker's cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from broker_lite.cli.main import run
from broker_lite.local.cluster import LocalCluster

Logbus = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def environment(cluster: LocalCluster, tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "LOGBUS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def logbus(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logbus:
    """Return a function that runs a command in this process, which is faster than a new process."""

    def run_command(*arguments: str, stdin: bytes = b"", code: int | None = 0) -> Any:
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].seek(0)
            patch = opened.enter_context(monkeypatch.context())
            patch.setattr(os, "environ", environment)
            patch.chdir(tmp_path)
            opened.enter_context(_standard_streams(files, patch))
            returned = run([*arguments])
            for file in files:
                file.seek(0)
            done = subprocess.CompletedProcess(
                arguments, returned, files[1].read(), files[2].read()
            )
        assert code in (done.returncode, None), done.stderr.decode()
        return done

    return run_command


@contextlib.contextmanager
def _standard_streams(files: Sequence[BinaryIO], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the file descriptors 0 to 2, and Python's streams on them, with files."""
    kept = [os.dup(number) for number in range(3)]
    streams = []
    try:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(files[number].fileno(), number)
            streams.append(os.fdopen(number, "r" if number == 0 else "w", closefd=False))
            patch.setattr(sys, name, streams[number])
        yield
    finally:
        for stream in streams[1:]:
            stream.flush()
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


@pytest.fixture
def new_topic(logbus: Logbus) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    logbus("topic", "create", name, "-p", "2")
    return name


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]
