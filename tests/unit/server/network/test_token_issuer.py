"""Tests of the keys with which a broker checks tokens: from a file or URL, reloaded if a token has
an unknown key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import authority, write_pem
from support.token_issuer import AUDIENCE, ISSUER, Issuer, serve

from broker_lite.config import BrokerConfig, parse
from broker_lite.errors import InvalidConfigError, LogbusError, NetworkError
from broker_lite.net.https import fetch_https
from broker_lite.server.clock import Clock
from broker_lite.server.network.token_issuer import TokenIssuer


class LateClock(Clock):
    """The real clock, set ahead by ``late_ms``."""

    __slots__ = ("late_ms",)

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.late_ms


def issuer_at(location: str) -> tuple[TokenIssuer, LateClock]:
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": location,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    clock = LateClock()
    clock.late_ms = 0
    return TokenIssuer(parse(BrokerConfig, settings), clock), clock


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    pem = write_pem(tmp_path / "server")
    monkeypatch.setenv("SSL_CERT_FILE", pem.ca)
    yield tmp_path / "server"


def test_token_with_an_unknown_key_reloads_the_key_set_at_most_once_a_minute(trusted: Path) -> None:
    async def use(url: str) -> None:
        found, clock = issuer_at(f"{url}/keys")
        await found.start()
        assert (await found.check(source.token())).user == "carol"
        assert source.asked == ["/keys"]
        source.key_id = "second"
        clock.late_ms = 59_000
        for _ in range(3):
            with pytest.raises(LogbusError, match="no key with the token's key id 'second'"):
                await found.check(source.token())
        assert source.asked == ["/keys"]
        clock.late_ms = 61_000
        assert (await found.check(source.token())).user == "carol"
        assert source.asked == ["/keys"] * 2
        clock.late_ms = 3_600_000
        await found.refresh()
        clock.late_ms = 3_662_000
        await found.refresh()
        assert source.asked == ["/keys"] * 3

    source = Issuer()
    with serve(source, trusted) as url:
        asyncio.run(use(url))


def test_unreachable_key_set_url_is_logged_and_the_old_keys_stay(
    trusted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(url: str) -> None:
        found, clock = issuer_at(f"{url}/keys")
        await found.start()
        source.answers["/keys"] = 500, {}, b""
        clock.late_ms = 3_600_001
        await found.refresh()
        assert (await found.check(source.token())).user == "carol"
        nowhere, _ = issuer_at(f"{url}/missing")
        source.answers["/missing"] = 404, {}, b""
        await nowhere.start()
        with pytest.raises(LogbusError, match="no key"):
            await nowhere.check(source.token())

    source = Issuer()
    with serve(source, trusted) as url, caplog.at_level(logging.ERROR, "logbus.logins"):
        asyncio.run(use(url))
    assert "sasl.oauthbearer.jwks.endpoint.url=https://127.0.0.1" in caplog.text
    assert "use the 1 keys of the last read" in caplog.text and "status 404" in caplog.text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((302, {"Location": "https://127.0.0.1/x"}, b""), "status 302, not 200"),
        ((200, {}, b"x" * 3000), "more than 2000 bytes"),
    ],
)
def test_redirect_or_too_long_response_for_the_keys_of_a_token_issuer_is_refused(
    trusted: Path, answer: tuple[int, dict[str, str], bytes], reason: str
) -> None:
    source = Issuer()
    source.answers["/keys"] = answer
    with serve(source, trusted) as url, pytest.raises(NetworkError, match=reason):
        fetch_https(f"{url}/keys", 2000)
    assert source.asked == ["/keys"]


def test_key_server_with_a_certificate_of_another_ca_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "foreign.pem"
    authority("foreign").cert_pem.write_to_path(str(foreign))
    monkeypatch.setenv("SSL_CERT_FILE", str(foreign))
    source = Issuer()
    with serve(source, tmp_path / "server") as url, pytest.raises(NetworkError, match="CERTIFI"):
        fetch_https(f"{url}/keys", 2000)


@pytest.mark.parametrize("spelling", ["{}", "file://{}"])
def test_key_set_is_read_from_a_file(tmp_path: Path, spelling: str) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(Issuer().key_set())
    found, _ = issuer_at(spelling.format(file))
    asyncio.run(found.start())


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"{}", "not a JWKS"), (b" " * 300_000, "more than 262144 bytes")],
)
def test_broker_does_not_start_with_an_unusable_key_set_file(
    tmp_path: Path, content: Any, reason: str
) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    found, _ = issuer_at(str(file))
    with pytest.raises(InvalidConfigError, match=f"jwks.endpoint.url={file}.*{reason}"):
        asyncio.run(found.start())
