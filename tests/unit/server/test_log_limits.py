"""Tests of the limits of a broker's log: repeated lines are suppressed, and files rotated."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_lite.server.log_limits import LINES_MAX, RepeatLimit, rotate_foreign

START_S = 1_000_000.0


class Lines(logging.Handler):
    """A log handler that stores the logged lines for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    handler.addFilter(RepeatLimit())
    yield handler
    handler.close()


def say(lines: Lines, second: float, message: str, *, line: int = 1, **extra: object) -> None:
    record = logging.LogRecord("logbus", logging.WARNING, "x.py", line, message, (), None)
    record.created = START_S + second
    vars(record).update(extra)
    lines.handle(record)


def test_repeated_warning_is_logged_once_a_minute_with_the_suppressed_count(lines: Lines) -> None:
    for second in range(60):
        say(lines, second, "t-0 offset 7: corrupt")
    assert lines.said == ["t-0 offset 7: corrupt"]
    say(lines, 60, "t-0 offset 7: corrupt")
    assert lines.said[1:] == ["t-0 offset 7: corrupt (59 such lines were left out before)"]


def test_warnings_about_the_same_object_are_repeats_even_if_their_texts_differ(
    lines: Lines,
) -> None:
    for port in range(5):
        say(lines, 0, f"10.0.0.1:{port}: closed", about="10.0.0.1")
    say(lines, 0, "10.0.0.2:1: closed", about="10.0.0.2")
    assert lines.said == ["10.0.0.1:0: closed", "10.0.0.2:1: closed"]


def test_one_log_statement_writes_a_limited_number_of_lines_a_minute(lines: Lines) -> None:
    for number in range(1000):
        say(lines, 0, f"offset {number}")
    say(lines, 0, "another statement", line=2)
    assert len(lines.said) == LINES_MAX + 1
    say(lines, 61, "later")
    assert lines.said[-1] == f"later ({1000 - LINES_MAX} such lines were left out before)"


def test_repeated_info_lines_are_not_limited(lines: Lines) -> None:
    for _ in range(3):
        lines.handle(logging.LogRecord("logbus", logging.INFO, "x.py", 1, "leads", (), None))
    assert lines.said == ["leads"] * 3


def test_output_of_a_crash_is_in_the_newest_log_file_after_rotations(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.log"
    program = """
import logging, pathlib, sys
from broker_lite.server.log_limits import OutputFile
logging.basicConfig(handlers=[OutputFile(pathlib.Path(sys.argv[1]), 1000)], format="%(message)s")
for number in range(100):
    logging.error("%03d %s", number, "x" * 95)
print("stdout")
sys.stdout.flush()
raise SystemExit("crashed")
"""
    with path.open("ab") as output:
        subprocess.run(
            [sys.executable, "-c", program, str(path)], stdout=output, stderr=output, check=False
        )
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["broker.log"] + [f"broker.log.{n}" for n in (1, 2, 3)]
    text = "".join(one.read_text() for one in reversed(files))
    numbers = [int(line[:3]) for line in text.splitlines() if line[0].isdigit()]
    assert numbers == list(range(numbers[0], 100)), "no line is lost at a rotation"
    assert files[0].read_text().endswith("stdout\ncrashed\n")
    assert all(one.stat().st_size <= 1100 for one in files)


def test_log_file_that_another_process_writes_is_rotated_by_copying(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.log"
    with path.open("ab", buffering=0) as output:
        for letter in (b"a", b"b", b"c", b"d", b"e"):
            output.write(letter * 1000)
            rotate_foreign(path, 1000)
            assert path.stat().st_size == 1000, "a file up to the limit is not rotated"
            output.write(letter)
            rotate_foreign(path, 1000)
            assert path.stat().st_size == 0
        output.write(b"new")
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == [path.name] + [f"{path.name}.{n}" for n in (1, 2, 3)]
    assert [one.read_bytes()[:3] for one in files] == [b"new", b"eee", b"ddd", b"ccc"]
    rotate_foreign(tmp_path / "missing.log")
