"""Tests of a console session for which the brokers failed to list the topics and groups that its
user may describe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker_lite.config.client_security import ClientSecurity
from broker_lite.console import sessions
from broker_lite.console.sessions import VISIBLE_S, Sessions, VisibleNames
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import TlsError

SECURITY = ClientSecurity(protocol="SASL_SSL", mechanism="PLAIN")
NAMES = VisibleNames(frozenset({"t"}), frozenset(), describes_cluster=True)


def test_console_session_works_again_after_a_non_retriable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: every later page of the session showed this error, until the user signed out."""
    answers: list[Any] = [NAMES, TlsError("the certificate is not trusted"), NAMES]

    def describable(_: object) -> VisibleNames:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    bus: Any = SimpleNamespace(
        security=SECURITY,
        close=lambda: None,
        admin=SimpleNamespace(security_without_password=lambda: SECURITY),
    )
    monkeypatch.setattr(sessions, "_bus_of", lambda *_: bus)
    monkeypatch.setattr(sessions, "_describable", describable)
    now_s = [0.0]
    opened = Sessions(bus, ConsoleSettings(), clock=lambda: now_s[0])
    session_id = opened.sign_in("alice", "secret")
    now_s[0] += VISIBLE_S + 1
    with pytest.raises(TlsError):
        opened.viewer(session_id)
    now_s[0] += VISIBLE_S + 1
    viewer = opened.viewer(session_id)
    assert viewer is not None and viewer.visible == NAMES
