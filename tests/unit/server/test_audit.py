"""The audit log's file: private, rotated, and named in the error if it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_lite.errors import InvalidConfigError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.server import audit
from broker_lite.server.audit import CHANGES, AuditLog
from broker_lite.server.network.access import ROWS
from broker_lite.wire.api import ApiKey


def test_lines_reach_the_private_file_when_the_log_closes(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(str(path))
    log.write("login", user="User:alice", host="10.0.0.7")
    log.write("denied", ("alice", "t"), user="User:alice")
    log.write("denied", ("alice", "t"), user="User:alice")
    log.close()
    log.write("login", user="User:late")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["login", "denied"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_full_file_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 500)
    path = tmp_path / "audit.log"
    log = AuditLog(str(path))
    for number in range(20):
        log.write("login", user=f"User:{number}")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert 1 < len(files) <= audit.FILES_KEPT + 1
    assert all(each.stat().st_size <= 500 for each in files)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


def test_file_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"audit\.log=.*missing/audit\.log"):
        AuditLog(str(tmp_path / "missing" / "audit.log"))


def test_log_without_a_path_writes_nothing() -> None:
    log = AuditLog()
    log.write("login", user="User:alice")
    log.close()
    assert not log.is_on


def test_every_recorded_api_is_served() -> None:
    assert CHANGES.keys() <= ROWS.keys()


def test_deleted_offsets_are_recorded_by_group_and_partition() -> None:
    rows = [SimpleNamespace(partition_index=3, error_code=0)]
    message: Any = SimpleNamespace(group_id="readers")
    response: Any = SimpleNamespace(
        error_code=0, topics=[SimpleNamespace(name="events", partitions=rows)]
    )
    found = CHANGES[ApiKey.OFFSET_DELETE](message, response, MetadataSnapshot())
    assert [change.object for change in found] == ["offset of group readers in events-3"]
