"""Tests of the names of directories and files: they round-trip, and other names are refused."""

from __future__ import annotations

import pytest

from broker_lite.model import PartitionKey
from broker_lite.storage import paths

KEY = PartitionKey("-_abcdefghijklmnopqrs-", 12)


def test_partition_directory_names_round_trip() -> None:
    assert paths.partition_dir("/d", KEY) == "/d/-_abcdefghijklmnopqrs--12"
    assert paths.parse_partition_dir("-_abcdefghijklmnopqrs--12") == KEY


@pytest.mark.parametrize("name", ["lock", "short-1", "x" * 22, f"{'x' * 22}-1.deleted", "x" * 40])
def test_malformed_directory_name_is_not_a_partition(name: str) -> None:
    assert paths.parse_partition_dir(name) is None


def test_segment_file_names_round_trip() -> None:
    for suffix in (*paths.SEGMENT_SUFFIXES, paths.SNAPSHOT):
        path = paths.segment_file("/d", 1234, suffix)
        assert path == f"/d/00000000000000001234{suffix}"
        assert paths.parse_segment_file(path.rpartition("/")[2]) == (1234, suffix)
    for name in ("1234.log", "00000000000000001234.log.deleted", "00000000000000001234.txt"):
        assert paths.parse_segment_file(name) is None


def test_name_of_a_file_that_keeps_cut_off_log_bytes_is_parsed() -> None:
    path = paths.torn_file("/d", 7, 2)
    assert paths.parse_torn_file(path.rpartition("/")[2]) == (7, 2)
    assert paths.parse_torn_file("00000000000000000007.log") is None
