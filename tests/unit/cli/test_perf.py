"""Tests of ``logbus perf`` with a simulated producer."""

from __future__ import annotations

from typing import Any

import pytest

from broker_lite.cli import perf
from broker_lite.client.producing import producer


class SimulatedProducer:
    """Records the number of rows and the bytes of each table that it gets."""

    sent: list[tuple[int, int]]

    def __init__(self, *_: Any) -> None:
        type(self).sent = []

    def __enter__(self) -> SimulatedProducer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send_arrow(self, _: str, table: Any) -> None:
        self.sent.append((len(table), table.nbytes))

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("records", "size"), [(50, 1_000_000), (20_001, 0), (3, 20_000_000)])
def test_perf_produce_splits_its_records_into_tables_of_limited_size(
    records: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a table had 20,000 rows of any size, such as 2 GB with --size 100000."""
    monkeypatch.setattr(producer, "Producer", SimulatedProducer)
    perf._produce("127.0.0.1:1", "t", perf._Load(records, size))
    assert sum(rows for rows, _ in SimulatedProducer.sent) == records
    assert max(size_bytes for _, size_bytes in SimulatedProducer.sent) <= max(2 * size, 17 << 20)
