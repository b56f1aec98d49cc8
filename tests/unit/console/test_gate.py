"""Tests of the checks before every console request: host, origin, form size, TLS, login."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_lite.config.client_security import NO_SECURITY
from broker_lite.console.gate import BODY_BYTES_MAX, HEADERS, Gate
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import InvalidConfigError


async def _page(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


def answer(
    method: str = "GET", settings: ConsoleSettings | None = None, **headers: str
) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of the console's response to a request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "raw_path": b"/", "path": "/", "headers": pairs}
    asyncio.run(Gate(_page, settings or ConsoleSettings())(scope, receive, send))
    start = sent[0]
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8088", "LOCALHOST", "[::1]:8088"])
def test_console_serves_requests_for_localhost_and_loopback_addresses(host: str) -> None:
    assert answer(host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8088", "localhost@evil.example", "", "[::1"]
)
def test_console_refuses_a_request_with_an_unknown_host_header(host: str) -> None:
    assert answer(host=host)[0] == 421


def test_console_serves_an_allowed_host_name() -> None:
    settings = ConsoleSettings(allowed_hosts=("console.example",))
    assert answer(settings=settings, host="console.example:443")[0] == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8088", 200),
        ("http://127.0.0.1:9999", 403),
        ("https://127.0.0.1:8088", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ],
)
def test_console_refuses_a_form_posted_from_another_origin(origin: str, status: int) -> None:
    given = {"host": "127.0.0.1:8088", "content_length": "3"}
    assert answer("POST", origin=origin, **given)[0] == status
    assert answer("POST", **given)[0] == 403


def test_console_refuses_a_form_that_is_too_long_or_has_no_content_length() -> None:
    given = {"host": "localhost", "origin": "http://localhost"}
    assert answer("POST", **given)[0] == 411
    assert answer("POST", content_length=str(BODY_BYTES_MAX + 1), **given)[0] == 413
    assert answer("DELETE", **given)[0] == 405


def test_console_refuses_a_chunked_form_even_if_it_has_a_content_length() -> None:
    """The HTTP parser h11 ignores the Content-Length of a chunked request, so the form would
    have no size limit."""
    given = {"host": "localhost", "origin": "http://localhost", "content_length": "5"}
    assert answer("POST", **given)[0] == 200
    assert answer("POST", transfer_encoding="chunked", **given)[0] == 411


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_every_console_response_has_the_security_headers(host: str) -> None:
    found = answer(host=host)[1]
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= found.items()
    policy = found["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "console.example"])
def test_console_that_other_machines_reach_needs_tls_and_logins(host: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"TLS .* and brokers that demand a login"):
        ConsoleSettings(host=host).check(demands_login=False)
    assert not ConsoleSettings(host=host).may_change(NO_SECURITY)
    assert ConsoleSettings(host=host, allow_changes=True).may_change(NO_SECURITY)


def test_console_on_loopback_needs_no_tls_and_no_logins() -> None:
    ConsoleSettings().check(demands_login=False)
    assert ConsoleSettings().may_change(NO_SECURITY)
    assert not ConsoleSettings(read_only=True).may_change(NO_SECURITY)
