"""Tests of the console's server process: its signals and its certificate."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from broker_lite.console.service import ConsoleServer
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import InvalidConfigError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_console_under_nohup_keeps_sighup_ignored() -> None:
    """Regression: the end of the terminal stopped a console that was started with nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    server = ConsoleServer(uvicorn.Config(lambda: None, lifespan="off"))
    with server.capture_signals():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == server.handle_exit


def test_console_with_an_unusable_certificate_names_the_file(tmp_path: Path) -> None:
    """Regression: the console printed its address, and ended with the error of OpenSSL alone."""
    pem = tmp_path / "ca.pem"
    pem.write_text("nothing")
    with pytest.raises(InvalidConfigError, match=f"--tls-certificate {pem} cannot be used"):
        ConsoleSettings(certificate=pem).check(demands_login=False)
