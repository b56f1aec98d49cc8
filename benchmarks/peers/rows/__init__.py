"""The rows, in the order of the table; each module's ``ROWS`` are some of them."""

from __future__ import annotations

from peers.row import Row
from peers.rows import brokers, consume, disk, produce, python, start

ROWS: tuple[Row, ...] = tuple(
    sorted(
        (*brokers.ROWS, *consume.ROWS, *disk.ROWS, *produce.ROWS, *python.ROWS, *start.ROWS),
        key=lambda row: (row.number, row.name),
    )
)
