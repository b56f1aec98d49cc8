"""Test a process that writes a log on a real disk: SIGKILL, and a full disk."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from support.stored import KEY, SMALL, append, offsets

from broker_lite.storage.files import OsFiles
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager

TESTS = Path(__file__).parent.parent

PRELUDE = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
from support.stored import KEY, SMALL, append, batch, offsets
from broker_lite.errors import StorageError
from broker_lite.storage.files import OsFiles
from broker_lite.storage.manager import LogManager
manager = LogManager(OsFiles(), sys.argv[1], default_config=SMALL)
manager.data.start()
manager.open_all(0)
log = manager.create(KEY)
"""

WRITER = """
while True:
    for _ in range(7):
        append(log)
    print(log.flush(), flush=True)
    manager.checkpoint()
"""

FULL = """
import resource
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
try:
    while True:
        append(log, batch(size=90))
except StorageError as error:
    assert "full" in str(error) and not log.failed, error
end = log.flush()
assert 0 < end <= 11
try:
    append(log)
except StorageError:
    pass
else:
    raise AssertionError("appended to a full disk")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert append(log).base_offset == end
log.flush()
assert offsets(log) == list(range(end + 1))
print("went on")
"""


def run(code: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PRELUDE + code, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )


def opened(directory: Path) -> tuple[LogManager, Log]:
    manager = LogManager(OsFiles(), str(directory), default_config=SMALL)
    manager.data.start()
    return manager, manager.open_all(0)[KEY]


@pytest.mark.parametrize("seed", range(3))
def test_flushed_records_survive_sigkill_while_writing(tmp_path: Path, seed: int) -> None:
    """The next process must find every record that was reported as flushed, and must be able to
    lock the folder."""
    random, promised = Random(seed), 0
    for start in range(1, 4):
        process = run(WRITER, tmp_path)
        assert process.stdout is not None
        try:
            for _ in range(random.randint(1, 60)):
                promised = int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGKILL)
            said, _ = process.communicate()
        promised = max([promised, *map(int, said.split("\n")[:-1])])
        manager, log = opened(tmp_path)
        assert manager.data.start_counter == 2 * start
        assert not manager.data.was_clean
        assert log.log_end_offset >= promised
        assert offsets(log) == list(range(log.log_end_offset))
        assert log.reader.corruption == ()
        append(log)
        promised = log.flush()
        manager.close()


def test_log_accepts_appends_again_after_its_disk_was_full(tmp_path: Path) -> None:
    process = run(FULL, tmp_path)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "went on\n")
    assert opened(tmp_path)[1].log_end_offset > 1
