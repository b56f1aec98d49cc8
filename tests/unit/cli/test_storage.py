"""``logbus storage`` on data directories without a broker."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from broker_lite.cli.storage import storage
from broker_lite.model import PartitionKey
from broker_lite.storage import LogManager, OsFiles


def test_strays_are_shown_and_deleted(tmp_path: Path) -> None:
    logs = LogManager(OsFiles(), str(tmp_path))
    logs.lock()
    logs.open_all(0)
    kept, stray = (PartitionKey("abcdefghijklmnopqrstuQ", number) for number in (0, 1))
    logs.create(kept)
    logs.create(stray)
    logs.set_aside(stray, 1000)
    shown = CliRunner().invoke(storage, ["strays", str(tmp_path), "-o", "json"])
    (row,) = json.loads(shown.output)
    assert (row["topic_id"], row["partition"]) == stray
    assert row["since"] == "1970-01-01T00:00:01.000Z"
    assert Path(row["path"]).is_dir()
    done = CliRunner().invoke(storage, ["strays", str(tmp_path), "--delete", "-o", "json"])
    assert json.loads(done.output) == [row]
    assert not Path(row["path"]).exists()
    assert (
        json.loads(CliRunner().invoke(storage, ["strays", str(tmp_path), "-o", "json"]).output)
        == []
    )
    assert logs.create(stray).log_end_offset == 0
    logs.close_clean()
