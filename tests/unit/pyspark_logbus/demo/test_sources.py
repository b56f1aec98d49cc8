"""Tests of the sources of the demo's lines: a file of the user, or the logs of this machine."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from pyspark_logbus.demo import sources
from pyspark_logbus.demo.sources import FileTail, from_file, from_machine


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_demo_reads_plain_and_compressed_files(tmp_path: Path, ending: str, pack: object) -> None:
    path = tmp_path / f"access.log{ending}"
    path.write_bytes(pack(b"one\r\n\n  \ntwo\xff\nthree"))  # type: ignore[operator]
    assert [source.lines for source in from_file(path, 100)] == [[b"one", b"two\xff", b"three"]]
    assert from_file(path, 2)[0].lines == [b"one", b"two\xff"]


def test_nul_byte_does_not_hide_the_lines_of_the_file_given_to_the_demo(tmp_path: Path) -> None:
    """Regression: one NUL byte silently hid all lines of the file."""
    path = tmp_path / "crashed.log"
    path.write_bytes(b"one\ntw\x00o\nthree\n")
    (found,) = from_file(path, 100)
    assert found.lines == [b"one", "tw\N{REPLACEMENT CHARACTER}o".encode(), b"three"]
    assert found.note.startswith("1 of them with NUL bytes")
    path.write_bytes(b"\n \n")
    assert from_file(path, 100)[0].note == "the file has only blank lines"


def test_demo_reports_a_file_that_is_not_in_the_compression_format_of_its_suffix(
    tmp_path: Path,
) -> None:
    for ending in (".gz", ".xz", ".bz2"):
        path = tmp_path / f"plain{ending}"
        path.write_bytes(b"plain text\n")
        with pytest.raises(OSError):
            from_file(path, 10)
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"line\n" * 100)[:12] + bytes(range(200)))
    with pytest.raises(OSError, match="cannot be decompressed"):
        from_file(tmp_path / "bad.gz", 10)


def test_log_file_of_the_machine_is_read_only_up_to_the_line_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each file was read whole before the limit was applied."""
    path = tmp_path / "endless.log"
    with path.open("wb") as file:
        file.write(b"one\ntwo\nthree\n")
        file.truncate(1 << 40)
    monkeypatch.setattr(sources, "_LOGS", tmp_path)
    monkeypatch.setattr(sources, "_journal", lambda _: [])
    assert from_machine(2)[0].lines == [b"one", b"two"]


def test_truncated_compressed_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"line\n" * 1000)[:-10])
    with pytest.raises(EOFError):
        from_file(path, 10_000)


def test_demo_collects_those_logs_of_the_machine_that_the_user_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt" / "history.log").write_text("Start-Date: 2026-05-20\n\n")
    (tmp_path / "dpkg.log").write_text("a\nb\nc\n")
    (tmp_path / "dpkg.log.2.gz").write_bytes(gzip.compress(b"old\n"))
    (tmp_path / "broken.gz").write_bytes(b"not packed")
    (tmp_path / "wtmp").write_bytes(b"\x00\x01\n")
    (tmp_path / "binary.log").write_bytes(b"text\n\x00\x01\n")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(sources, "_LOGS", tmp_path)
    monkeypatch.setattr(sources, "_journal", lambda lines_max: [b"j1", b"j2"][:lines_max])
    assert {source.name: len(source.lines) for source in from_machine(100)} == {
        "journal": 2,
        "apt/history.log": 1,
        "dpkg.log": 3,
        "dpkg.log.2.gz": 1,
    }
    assert sum(len(source.lines) for source in from_machine(4)) == 4


def test_following_a_growing_file_returns_each_complete_line_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    tail = FileTail(lambda: [one, two])
    assert tail.lines(10) == []
    one.write_bytes(b"a\nb\nha")
    two.write_bytes(b"\nx\n")
    assert tail.lines(1) == [b"a"]
    assert tail.lines(10) == [b"b", b"x"]
    with one.open("ab") as file:
        file.write(b"lf\n")
    assert tail.lines(10) == [b"half"]
    assert tail.lines(10) == []
