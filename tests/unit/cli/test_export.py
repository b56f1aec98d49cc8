"""Tests of the errors with which ``logbus export`` refuses a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_lite.cli.export import _RecordFile
from broker_lite.errors import StorageError


def test_export_into_a_missing_folder_names_the_command_that_creates_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"mkdir -p {tmp_path}/missing"):
        _RecordFile(tmp_path / "missing" / "x.csv", "csv")


def test_export_into_a_folder_without_ordinary_files_does_not_tell_to_create_the_folder() -> None:
    """Regression: for /proc, the message said that the folder did not exist."""
    with pytest.raises(StorageError, match="Name a file in a folder that this user may write to"):
        _RecordFile(Path("/proc/x.csv"), "csv")
