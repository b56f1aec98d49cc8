"""The client's SASL login on a connection, as a generator that yields requests, without I/O."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Any, NamedTuple

from broker_lite.client.transport.steps import CallExchange, Exchange
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import SaslAuthenticationError, UnsupportedSaslMechanismError, error_for
from broker_lite.model import OAUTHBEARER, PLAIN, Endpoint, ScramMechanism
from broker_lite.security.bearer import AccessToken, bearer_message
from broker_lite.security.plain import PlainPassword, plain_message
from broker_lite.security.scram import ScramClient, ScramKeys
from broker_lite.wire.calls.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)

NONCE_BYTES = 24
"""Number of random bytes in a SCRAM nonce."""

TaskSecret = ScramKeys | PlainPassword | AccessToken
"""The secret that replaces the password in security settings before they are pickled for another
process, such as a Spark executor."""


class LoggedIn(NamedTuple):
    """The outcome of a login.

    ``secret`` lets another process log in without the password. ``lifetime_ms`` is the time after
    which the connection must log in again (0: never)."""

    secret: TaskSecret
    lifetime_ms: int


Login = Generator[Exchange[Any], Any, LoggedIn]


def login(endpoint: Endpoint, security: ClientSecurity) -> Login:
    """Log in with the settings ``security``: yield each request, and receive the broker's response.

    Raises SaslAuthenticationError or UnsupportedSaslMechanismError, which name the user or the
    mechanism, and the broker."""
    mechanism = security.mechanism
    offered = yield CallExchange(SaslHandshakeRequest(mechanism))
    if offered.error_code == UnsupportedSaslMechanismError.code:
        enabled = ", ".join(offered.mechanisms) or "none"
        raise UnsupportedSaslMechanismError(
            f"{endpoint} does not accept sasl.mechanism={mechanism}; use one of: {enabled}"
        )
    if offered.error_code:
        raise error_for(
            offered.error_code,
            f"{endpoint} accepts no logins; set security.protocol=PLAINTEXT (or SSL)",
        )
    if mechanism in (PLAIN, OAUTHBEARER):
        secret, message = _only_message(security)
        answer = yield CallExchange(SaslAuthenticateRequest(message))
        _check(endpoint, security, answer)
        if answer.auth_bytes:
            raise SaslAuthenticationError(_refusal(endpoint, security))
        return LoggedIn(secret, answer.session_lifetime_ms)
    client = ScramClient(
        ScramMechanism(mechanism),
        security.username,
        _keys_or_password(security),
        secrets.token_urlsafe(NONCE_BYTES),
    )
    challenge = yield CallExchange(SaslAuthenticateRequest(client.first()))
    _check(endpoint, security, challenge)
    proof = yield CallExchange(SaslAuthenticateRequest(client.final(challenge.auth_bytes)))
    _check(endpoint, security, proof)
    client.verify(proof.auth_bytes)
    assert client.keys is not None
    return LoggedIn(client.keys, proof.session_lifetime_ms)


def _keys_or_password(security: ClientSecurity) -> str | ScramKeys:
    secret = security.secret
    return secret.reveal() if isinstance(secret, Secret) else ScramKeys(*secret)


def _only_message(security: ClientSecurity) -> tuple[TaskSecret, bytes]:
    """Return the secret with which other processes can log in, and the client's message in a PLAIN
    or OAUTHBEARER login, which has only one."""
    given = security.secret
    if security.mechanism == PLAIN:
        text = given.reveal() if isinstance(given, Secret) else PlainPassword(*given).text
        return PlainPassword(text), plain_message(security.username, text)
    assert not isinstance(given, Secret), "with_token comes before a login"
    token = AccessToken(*given)
    return token, bearer_message(token.text)


def _check(endpoint: Endpoint, security: ClientSecurity, answer: SaslAuthenticateResponse) -> None:
    if answer.error_code:
        raise SaslAuthenticationError(_refusal(endpoint, security))


def _refusal(endpoint: Endpoint, security: ClientSecurity) -> str:
    if security.mechanism == OAUTHBEARER:
        return (
            f"{endpoint} refused the access token of client {security.username!r}: it has ended, "
            "or its issuer, audience or key is not the one of the brokers' sasl.oauthbearer.* "
            "settings. The broker's log says which"
        )
    return (
        f"{endpoint} refused the login of user {security.username!r}: the password is wrong or "
        "was changed, or there is no such user. Check sasl.username and sasl.password"
    )
