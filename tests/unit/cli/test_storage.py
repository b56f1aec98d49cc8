"""Tests of ``logbus storage`` on data directories that no broker uses."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.stored import append

from broker_lite.cli.storage import storage
from broker_lite.model import PartitionKey
from broker_lite.storage.files import OsFiles
from broker_lite.storage.manager import LogManager


def test_command_storage_strays_lists_and_deletes_stray_logs(tmp_path: Path) -> None:
    logs = LogManager(OsFiles(), str(tmp_path))
    logs.data.start()
    logs.open_all(0)
    kept, stray = (PartitionKey("abcdefghijklmnopqrstuQ", number) for number in (0, 1))
    logs.create(kept)
    logs.create(stray)
    logs.set_aside(stray, 1000)
    shown = CliRunner().invoke(storage, ["strays", str(tmp_path), "-o", "json"])
    (row,) = json.loads(shown.stdout)
    assert (row["topic_id"], row["partition"]) == stray
    assert row["since"] == "1970-01-01T00:00:01.000Z"
    assert Path(row["path"]).is_dir()
    delete = ["strays", str(tmp_path), "--delete", "-o", "json"]
    dry = CliRunner().invoke(storage, [*delete, "--dry-run"])
    assert json.loads(dry.stdout) == [row] and "Delete 1 stray logs" in dry.stderr
    asked = CliRunner().invoke(storage, delete, input="n\n")
    assert (asked.exit_code, Path(row["path"]).is_dir()) == (1, True)
    done = CliRunner().invoke(storage, [*delete, "--yes"])
    assert json.loads(done.stdout) == [row]
    assert not Path(row["path"]).exists()
    assert (
        json.loads(CliRunner().invoke(storage, ["strays", str(tmp_path), "-o", "json"]).stdout)
        == []
    )
    assert logs.create(stray).log_end_offset == 0
    logs.close_clean()


def test_storage_commands_report_a_folder_that_the_user_may_not_read() -> None:
    # The test needs a folder that another user may enter, unlike pytest's ``tmp_path``.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        closed = folder / "broker-0"
        closed.mkdir(mode=0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65_534)  # Permissions do not restrict root, so become another user.
        try:
            for command in ("verify", "inspect"):
                with pytest.raises(PermissionError) as raised:
                    arguments = [command, str(folder), "-o", "json"]
                    CliRunner().invoke(storage, arguments, catch_exceptions=False)
                assert closed in (path := Path(raised.value.filename), path.parent)
        finally:
            os.seteuid(user)


def test_storage_verify_distinguishes_lost_data_from_files_that_a_start_rebuilds(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cluster" / "broker-0"
    logs = LogManager(OsFiles(), str(folder))
    logs.data.start()
    logs.open_all(0)
    log = logs.create(PartitionKey("abcdefghijklmnopqrstuQ", 0))
    append(log)
    logs.close_clean()

    def verify(path: Path) -> tuple[int, list[dict[str, Any]]]:
        done = CliRunner().invoke(
            storage, ["verify", str(path), "-o", "json"], standalone_mode=False
        )
        return done.return_value, [row for row in json.loads(done.stdout) if row["problems"]]

    segment = next(folder.rglob("*.log"))
    for path in (tmp_path, folder, segment.parent, segment):
        assert verify(path) == (0, [])
    segment.with_suffix(".index").write_bytes(b"LB")
    code, (row,) = verify(tmp_path)
    assert (code, row["made_again"]) == (4, True)
    segment.write_bytes(segment.read_bytes()[:-1])
    code, found = verify(tmp_path)
    assert (code, [row["made_again"] for row in found]) == (5, [False, True])
    assert found[0]["problems"] == [
        "position 0: the batch is cut: 119 of its 120 bytes are present",
        "the log ends at offset 0, below its recovery point 1",
    ]


def test_storage_verify_of_a_folder_without_logs_is_an_error(tmp_path: Path) -> None:
    """Regression: for a wrong folder the command printed nothing, and code 0 means "all well"."""
    done = CliRunner().invoke(storage, ["verify", str(tmp_path)])
    assert (done.exit_code, "name log.dir" in " ".join(done.output.split())) == (2, True)
    inspected = CliRunner().invoke(storage, ["inspect", str(tmp_path)])
    assert f"there is no batch in {tmp_path}" in inspected.output
    logs = LogManager(OsFiles(), str(tmp_path / "broker-0" / "data"))
    logs.data.start()
    logs.open_all(0)
    logs.close_clean()
    assert CliRunner().invoke(storage, ["verify", str(tmp_path)]).exit_code == 0


def test_command_storage_strays_reports_that_a_directory_has_no_stray_logs(tmp_path: Path) -> None:
    done = CliRunner().invoke(storage, ["strays", str(tmp_path)])
    assert f"{tmp_path} holds no stray logs" in done.output
