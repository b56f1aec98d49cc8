"""A pytest plugin that applies a test's time limit to its teardown too.

Alone, pytest-timeout raises an error once in a test, and stops its timer when the test fails. A
fixture that then waits for ever, for example for a query that does not stop, would block the whole
run.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

_SETTINGS = pytest.StashKey[Any]()
_REPEAT_S = 30.0
"""Seconds after which an expired limit raises again: a ``finally`` block may hang too."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Iterator[None]:
    result = yield
    item.stash[_SETTINGS] = settings
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, min(settings.timeout, _REPEAT_S))
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Stop the timer of a failed test: it raises again every _REPEAT_S, and the report may take
    longer on a busy machine. The teardown starts the timer anew."""
    if call.excinfo is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Apply the time limit of a test to its teardown."""
    settings = item.stash.get(_SETTINGS, None)
    if settings is not None:
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
