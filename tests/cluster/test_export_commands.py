"""Export the records of a real cluster to files with ``logbus export`` and ``logbus consume``, and
read the files back."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fix_command_line import Logbus, rows


def test_export_shows_its_progress_on_a_terminal(
    environment: dict[str, str], logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    logbus("produce", new_topic, stdin=b"x\n" * 500)
    main, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "broker_lite", "consume", new_topic, "-e"]
    try:
        with (tmp_path / "records").open("wb") as file:
            subprocess.run(
                command, stdout=file, stderr=terminal, env=environment, check=True, timeout=60
            )
        said = os.read(main, 10_000).decode()
    finally:
        os.close(main)
        os.close(terminal)
    assert (tmp_path / "records").read_bytes() == b"x\n" * 500
    assert "records" in said and "100%" in said


def test_export_to_a_symbolic_link_writes_the_file_to_which_the_link_points(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    """Regression: the export replaced a symbolic link or a named pipe by a new file, so a reader of
    the pipe waited for ever. With /dev/stdout, the export would have replaced the link in /dev."""
    os.mkfifo(tmp_path / "pipe.csv")
    refused = logbus("export", new_topic, "pipe.csv", "--yes", code=2).stderr.decode()
    assert f"logbus consume {new_topic} -e -o jsonl" in " ".join(refused.split())
    assert (tmp_path / "pipe.csv").is_fifo()
    (tmp_path / "link.csv").symlink_to("target.csv")
    logbus("export", new_topic, "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "target.csv").is_file()


def test_records_exported_to_arrow_or_parquet_can_be_produced_again(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    logbus("produce", new_topic, "-k", "key", stdin=b"a\nb\nc\n")
    (tmp_path / "t.parquet").write_bytes(logbus("consume", new_topic, "-e", "-o", "parquet").stdout)
    logbus("produce", new_topic, "t.parquet")
    stream = logbus("consume", new_topic, "-e", "-o", "arrow").stdout
    table = pa.ipc.open_stream(io.BytesIO(stream)).read_all()
    assert sorted(table.column("value").to_pylist()) == [b"a", b"a", b"b", b"b", b"c", b"c"]
    assert set(table.column("key").to_pylist()) == {b"key"}
    (tmp_path / "bad.parquet").write_bytes(b"nonsense")
    assert b"INVALID_SCHEMA" in logbus("produce", new_topic, "bad.parquet", code=1).stderr


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_export_writes_every_record_into_a_file(
    form: str, logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    values = sorted(f'{{"n": {number}, "text": "a,b"}}' for number in range(300))
    logbus("produce", new_topic, stdin="\n".join(values).encode())
    file = tmp_path / f"records.{form}"
    done = logbus("export", new_topic, file.name)
    assert f"300 records of {new_topic} in {file.name}" in done.stderr.decode()
    assert done.stdout == b"" and sorted(tmp_path.glob(".*")) == []
    (plan,) = rows(logbus("export", new_topic, "other.csv", "--dry-run", "-o", "jsonl"))
    assert (plan["offsets"], plan["exported"]) == (300, False)
    assert not (tmp_path / "other.csv").exists()
    if form == "parquet":
        found = pq.read_table(file).column("value").to_pylist()
        assert sorted(value.decode() for value in found) == values
        (again,) = rows(logbus("produce", new_topic, file.name, "-o", "jsonl"))
        assert again["records"] == 300
    elif form == "csv":
        with file.open(newline="") as rows_of_file:
            assert sorted(row["value"] for row in csv.DictReader(rows_of_file)) == values
        (again,) = rows(logbus("produce", new_topic, file.name, "-o", "jsonl"))
        assert again["records"] == 300
    else:
        envelopes = [json.loads(line) for line in file.read_text().splitlines()]
        assert sorted(row["value"]["n"] for row in envelopes) == list(range(300))
    # export replaces an existing file only with --yes. Even without records to export it writes a
    # file.
    assert b"Replace" in logbus("export", new_topic, file.name, code=1).stderr
    latest = ("export", new_topic, file.name, "-s", "latest")
    (done_row,) = rows(logbus(*latest, "--yes", "-o", "jsonl"))
    assert (done_row["records"], done_row["exported"]) == (0, True)
    assert file.exists() and str(values[0]) not in file.read_bytes().decode("latin-1")


def test_export_refuses_folders_and_file_names_with_an_unknown_suffix(
    logbus: Logbus, new_topic: str, tmp_path: Path
) -> None:
    assert b"give --format" in logbus("export", new_topic, "records.xls", code=2).stderr
    refused = logbus("export", new_topic, "no where/records.csv", code=1).stderr
    assert b"records.csv cannot be written: the folder 'no where' does not exist" in refused
    assert refused.strip().endswith(b"mkdir -p 'no where'")
    (tmp_path / "file").write_bytes(b"")
    refused = logbus("export", new_topic, "file/records.csv", code=1).stderr
    assert b"'file' is not a folder. Name another file" in refused
