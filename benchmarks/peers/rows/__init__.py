"""The rows, in the order of the table; each module's ``ROWS`` are some of them."""

from __future__ import annotations

from peers.row import Row
from peers.rows import produce

ROWS: tuple[Row, ...] = tuple(sorted((*produce.ROWS,), key=lambda row: (row.number, row.name)))
