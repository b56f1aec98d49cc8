"""Check OAUTHBEARER tokens with their issuer's public keys, from a file or an https URL.

A worker thread reads the keys at the broker's start, every hour, and, at most once a minute, when a
token names an unknown key. All other code runs on the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from broker_lite.config import MINUTE
from broker_lite.config.broker import BrokerConfig
from broker_lite.errors import InvalidConfigError, LogbusError, NetworkError
from broker_lite.net.https import fetch_https
from broker_lite.security.bearer import CheckedToken
from broker_lite.security.tokens import TokenKeys, TokenRules, check_token, key_id_of, parse_keys
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event

DOCUMENT_BYTES_MAX = 256 << 10
"""Maximum bytes of the document with the issuer's keys (JWKS)."""
READ_INTERVAL_MS = 60 * MINUTE
"""Time in ms between two regular reads of the issuer's keys."""
RETRY_INTERVAL_MS = MINUTE
"""Minimum time in ms between two reads of the issuer's keys, after a failed read or for an unknown
key."""

logger = logging.getLogger("logbus.logins")


class TokenIssuer:
    """The token issuer that this broker trusts, with the issuer's current keys."""

    def __init__(self, config: BrokerConfig, clock: Clock, threads: Executor | None = None) -> None:
        self._location = config.oauth_keys
        self._clock = clock
        self._threads = threads
        self._rules = TokenRules(
            config.oauth_issuer, config.oauth_audiences, config.oauth_name_claim
        )
        self._keys: TokenKeys = {}
        self._read_ms = 0
        """Monotonic time (ms) of the last attempt to read the issuer's keys."""
        self._is_failed = False
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the issuer's keys for the first time.

        Raises InvalidConfigError if the file of keys cannot be used. An unusable URL is only
        logged; ``refresh`` reads it again after a minute."""
        try:
            await self._read()
        except LogbusError as error:
            if not self._location.startswith("https:"):
                raise
            self._report(error)

    async def check(self, token: str) -> CheckedToken:
        """Return the user and the expiry of a token. Raises SaslAuthenticationError if it is
        invalid."""
        if key_id_of(token) not in self._keys:
            await self.refresh(is_urgent=True)
        return check_token(token, self._keys, self._rules, self._clock.now_ms())

    async def refresh(self, *, is_urgent: bool = False) -> None:
        """Read the issuer's keys again if the last read is an hour old; a minute, if that read
        failed or with ``is_urgent``."""
        async with self._lock:
            wait_ms = RETRY_INTERVAL_MS if is_urgent or self._is_failed else READ_INTERVAL_MS
            if self._clock.monotonic_ms() - self._read_ms < wait_ms:
                return
            try:
                await self._read()
            except LogbusError as error:
                self._report(error)

    async def _read(self) -> None:
        self._read_ms = self._clock.monotonic_ms()
        self._is_failed = True
        loop = asyncio.get_running_loop()
        self._keys = await loop.run_in_executor(self._threads, _keys_at, self._location)
        self._is_failed = False

    def _report(self, error: LogbusError) -> None:
        logger.error(
            "%s. Logins with tokens use the %d keys of the last read; the broker retries in a "
            "minute",
            error.message,
            len(self._keys),
            extra=log_event("token_keys_unreadable"),
        )


def _keys_at(location: str) -> TokenKeys:
    """Return the keys in a file or at an https URL.

    Raises InvalidConfigError or NetworkError, which name the setting."""
    setting = f"sasl.oauthbearer.jwks.endpoint.url={location}"
    if location.startswith("https:"):
        try:
            text = fetch_https(location, DOCUMENT_BYTES_MAX)
        except NetworkError as error:
            raise NetworkError(f"{setting}: {error.message}") from None
    else:
        path = Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)
        try:
            with path.open("rb") as file:
                text = file.read(DOCUMENT_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidConfigError(
                f"{setting}: the file cannot be read: {error.strerror}; name a file with the "
                "issuer's key set"
            ) from None
        if len(text) > DOCUMENT_BYTES_MAX:
            raise InvalidConfigError(
                f"{setting}: the file has more than {DOCUMENT_BYTES_MAX} bytes; name a smaller one"
            )
    try:
        return parse_keys(text)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{setting}: {error.message}") from None
