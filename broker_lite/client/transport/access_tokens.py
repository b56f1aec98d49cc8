"""Fetch, cache and renew a client's OAuth access tokens (client credentials, RFC 6749, 4.4).

Connections of a process with equal ``ClientSecurity`` share one token. ``token_of`` blocks only
while there is no valid token. After four fifths of a token's lifetime, a background thread fetches
the next one. Any thread may call these functions."""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import time
from dataclasses import replace
from urllib.parse import quote_plus, urlencode

from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import LogbusError, NetworkError, SaslAuthenticationError
from broker_lite.security.bearer import AccessToken, end_of_token

ANSWER_BYTES_MAX = 64 << 10
"""Maximum bytes of a response from the token issuer."""
RENEWED_AFTER = 0.8
"""A token, or a connection's login session, is renewed after this fraction of its lifetime."""
RETRY_S = 10.0
"""Seconds after which the failed renewal of a token is retried."""
LIFETIME_S = 300.0
"""Assumed lifetime, in seconds, of a token that does not state when it expires."""

logger = logging.getLogger("logbus.client")


class _CachedToken:
    """The token of one ``ClientSecurity``; it must be renewed at ``renewed_ms`` (ms since 1970)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.token: AccessToken | None = None
        self.renewed_ms = 0.0
        self.is_renewing = False


_cached: dict[ClientSecurity, _CachedToken] = {}
# Clear the cached tokens in a forked child. There, a token's lock that another thread held would
# never be released, and no thread would renew the token.
os.register_at_fork(after_in_child=_cached.clear)


def with_token(security: ClientSecurity) -> ClientSecurity:
    """Return ``security`` with a valid access token in place of the OAuth client secret.

    Settings without such a secret are returned unchanged. Blocks while the first token is fetched.
    Raises NetworkError if the issuer cannot be reached, and SaslAuthenticationError if its response
    contains no token."""
    if not security.token_url or not isinstance(security.secret, Secret):
        return security
    return replace(security, secret=token_of(security))


def token_of(security: ClientSecurity) -> AccessToken:
    """Return an access token for ``security``; blocks and raises errors as ``with_token`` does."""
    token = fresh_token(security)
    if token is not None:
        return token
    cached = _cached[security]
    with cached.lock:
        if cached.token is None or time.time() * 1000 >= cached.token.ends_ms:
            _keep(cached, _fetch(security))
        assert cached.token is not None
        return cached.token


def fresh_token(security: ClientSecurity) -> AccessToken | None:
    """Return the cached valid token for ``security`` without blocking, or None.

    If the token's renewal is due, start the renewal in a thread."""
    cached = _cached.setdefault(security, _CachedToken())
    token, now_ms = cached.token, time.time() * 1000
    if token is None:
        return None
    if now_ms >= cached.renewed_ms and not cached.is_renewing:
        cached.is_renewing = True
        threading.Thread(
            target=_renew, args=(cached, security), name="logbus-token", daemon=True
        ).start()
    return token if now_ms < token.ends_ms else None


def _keep(cached: _CachedToken, token: AccessToken) -> None:
    now_ms = time.time() * 1000
    cached.renewed_ms = now_ms + (token.ends_ms - now_ms) * RENEWED_AFTER
    cached.token = token


def _renew(cached: _CachedToken, security: ClientSecurity) -> None:
    try:
        _keep(cached, _fetch(security))
    except LogbusError as error:
        cached.renewed_ms = (time.time() + RETRY_S) * 1000
        logger.warning("the renewal of the access token failed and is retried: %s", error.message)
    finally:
        cached.is_renewing = False


def _fetch(security: ClientSecurity) -> AccessToken:
    from broker_lite.net.https import fetch_https

    secret = security.secret
    assert isinstance(secret, Secret)
    pair = f"{quote_plus(security.username)}:{quote_plus(secret.reveal())}".encode()
    form = {"grant_type": "client_credentials"}
    if security.token_scope:
        form["scope"] = security.token_scope
    began_ms = time.time() * 1000
    try:
        answer = fetch_https(
            security.token_url,
            ANSWER_BYTES_MAX,
            form=urlencode(form),
            headers={"Authorization": f"Basic {base64.b64encode(pair).decode()}"},
        )
    except NetworkError as error:
        raise NetworkError(
            f"no access token for client {security.username!r}: {error.message}; check "
            "sasl.oauthbearer.token.endpoint.url, the client id and its secret"
        ) from None
    try:
        response = json.loads(answer)
        text = response["access_token"]
        lifetime_ms = int(float(response.get("expires_in") or 0) * 1000)
        text.encode("ascii")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise SaslAuthenticationError(
            f"the answer of {security.token_url} has no access_token, or no valid expires_in; "
            "check sasl.oauthbearer.token.endpoint.url"
        ) from None
    ends_ms = began_ms + lifetime_ms if lifetime_ms > 0 else end_of_token(text)
    return AccessToken(text, int(ends_ms or began_ms + LIFETIME_S * 1000))
