"""The table of what other people's clients were answered.

``make compat`` runs those that need Maven or Node (mark ``compat``; the plain suite leaves them
out) and writes the table to the file that LOGBUS_COMPAT_RESULTS names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

RESULTS = "LOGBUS_COMPAT_RESULTS"
HEAD = """# What other people's clients were answered

Written by `make compat`. "refused" is Kafka's own error for what is not served.

| client | asked for | answer |
|---|---|---|
"""

_ROWS: list[tuple[str, str, str]] = []


@pytest.fixture(scope="session")
def answered() -> Callable[[str, str, str], None]:
    """Notes a client, what it asked for and what it was answered."""
    return lambda client, asked, answer: _ROWS.append((client, asked, answer))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _ROWS.append((report.nodeid.rpartition("/")[2], report.when or "", "FAILED"))


def pytest_sessionfinish() -> None:
    if (name := os.environ.get(RESULTS)) and _ROWS:
        rows = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in _ROWS]
        Path(name).write_text(HEAD + "".join(rows), "utf-8")
