"""Tests of console sessions: a failed request for the names that a user may describe, and the right
to change the cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker_lite.bus import Bus
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.console import sessions
from broker_lite.console.sessions import VISIBLE_S, Sessions, VisibleNames
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import TlsError

SECURITY = ClientSecurity(protocol="SASL_SSL", mechanism="PLAIN")
CERTIFICATE = ClientSecurity(protocol="SSL", certificate_location="/etc/logbus/console.pem")
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


@pytest.mark.parametrize(
    ("security", "settings", "may_change"),
    [
        (NO_SECURITY, ConsoleSettings(), True),
        (CERTIFICATE, ConsoleSettings(), False),
        (CERTIFICATE, ConsoleSettings(allow_changes=True), True),
        (CERTIFICATE, ConsoleSettings(allow_changes=True, read_only=True), False),
    ],
)
def test_console_with_a_client_certificate_and_no_login_makes_no_changes_unless_allowed(
    security: ClientSecurity, settings: ConsoleSettings, may_change: bool
) -> None:
    """Regression: every user of the machine could change a cluster with the certificate of the
    console."""
    with Bus("127.0.0.1:1", client_id="tests", options={}, security=security) as bus:
        viewer = Sessions(bus, settings).viewer("")
    assert viewer is not None and viewer.may_change == may_change
