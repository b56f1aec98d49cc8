"""Tests of ``logbus logs``, which prints the last lines of processes, follows rotated files and
marks warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_lite.cli.logs import LogTail, is_warning
from broker_lite.cli.main import run
from broker_lite.server.log_limits import keep_rotated

INFO = "2026-11-23 13:00:00,000 INFO logbus.broker: {}\n"
WARNING = "2026-11-23 13:00:00,000 WARNING logbus.broker: {}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the folder of a stopped cluster: the logs of two brokers and of ZooKeeper."""
    for name in ("broker-0", "broker-10"):
        (tmp_path / name).mkdir()
        lines = [INFO.format(f"{name} {number}") for number in range(5)]
        (tmp_path / name / "broker.log").write_text("".join([*lines, WARNING.format("hot")]))
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "zookeeper" / "zookeeper.log").write_text("x [main:Y@1] - WARN  z\n")
    return tmp_path


def test_command_logs_prints_the_last_lines_of_each_process_with_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "--dir", str(folder), "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" | ")[0] for line in lines] == [
        "broker-0", "broker-0", "broker-10", "broker-10", "zookeeper",
    ]  # fmt: skip
    assert lines[0].endswith("broker-0 4")


def test_command_logs_with_json_output_has_a_row_for_each_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "--dir", str(folder), "-n", "1", "-o", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["process"] for row in rows] == ["broker-0", "broker-10", "zookeeper"]
    assert rows[0]["line"] == WARNING.format("hot").rstrip()
    assert run(["logs", "-f", "--dir", str(folder), "-o", "json"]) == 2
    assert "give -o jsonl" in capsys.readouterr().err


def test_command_logs_prints_lines_of_a_single_process_without_a_prefix(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "10", "--dir", str(folder), "-n", "1", "--warnings"]) == 0
    assert capsys.readouterr().out == WARNING.format("hot")
    assert run(["logs", "10", "--dir", str(folder), "-n", "0"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["logs", "7", "--dir", str(folder)]) == 2
    assert "'broker-7'; there are: broker-0, broker-10, zookeeper" in capsys.readouterr().err


def test_command_logs_follows_a_file_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_text("old\nold\n")
    tail = LogTail(path)
    tail.skip_to_last(1)
    assert list(tail.new_lines()) == [b"old\n"]
    with path.open("a") as file:
        file.write("half")
    assert list(tail.new_lines()) == []
    with path.open("a") as file:
        file.write(" line\nlast\n")
    keep_rotated(path, path)
    path.write_text("first of the new\n")
    assert list(tail.new_lines()) == [b"half line\n", b"last\n", b"first of the new\n"]
    path.write_text("cut\n")  # The guard rotates ZooKeeper's log by truncating the file.
    assert list(tail.new_lines()) == [b"cut\n"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"13:00 INFO logbus: 1 WARNINGS\n", False),
        (b"13:00 ERROR logbus: x\n", True),
        (b'{"level": "WARNING", "message": "x"}\n', True),
        (b'{"level": "INFO", "message": "x"}\n', False),
        (b"13:00 [myid:] - WARN  [main:X@1] - y\n", True),
    ],
)
def test_command_logs_recognises_the_warnings_of_every_process(line: bytes, expected: bool) -> None:
    assert is_warning(line) is expected


def test_logs_command_fails_in_a_folder_without_log_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert run(["logs"]) == 3
    assert "logbus up" in capsys.readouterr().err
    assert run(["logs", "--dir", str(tmp_path)]) == 3
    assert "no logs in" in capsys.readouterr().err
