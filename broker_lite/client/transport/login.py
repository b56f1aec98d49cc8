"""The client's login on a new connection, as a generator of exchanges. It does no I/O."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Any

from broker_lite.client.transport.steps import CallExchange, Exchange
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import SaslAuthenticationError, UnsupportedSaslMechanismError, error_for
from broker_lite.model import Endpoint, ScramMechanism
from broker_lite.security.scram import ScramClient, ScramKeys
from broker_lite.wire.calls.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)

NONCE_BYTES = 24

Login = Generator[Exchange[Any], Any, None]


def login(endpoint: Endpoint, security: ClientSecurity) -> Login:
    """Yield the exchanges of a login and receive their answers.

    Raises SaslAuthenticationError or UnsupportedSaslMechanismError, which name user and broker.
    """
    mechanism = ScramMechanism(security.mechanism)
    offered = yield CallExchange(SaslHandshakeRequest(mechanism))
    if offered.error_code == UnsupportedSaslMechanismError.code:
        enabled = ", ".join(offered.mechanisms) or "none"
        raise UnsupportedSaslMechanismError(
            f"{endpoint} does not take sasl.mechanism={mechanism}; it takes {enabled}"
        )
    if offered.error_code:
        raise error_for(
            offered.error_code,
            f"{endpoint} takes no logins; set security.protocol=PLAINTEXT (or SSL)",
        )
    secret = security.secret
    client = ScramClient(
        mechanism,
        security.username,
        secret.reveal() if isinstance(secret, Secret) else ScramKeys(*secret),
        secrets.token_urlsafe(NONCE_BYTES),
    )
    challenge = yield CallExchange(SaslAuthenticateRequest(client.first()))
    _check(endpoint, security, challenge)
    proof = yield CallExchange(SaslAuthenticateRequest(client.final(challenge.auth_bytes)))
    _check(endpoint, security, proof)
    client.verify(proof.auth_bytes)


def _check(endpoint: Endpoint, security: ClientSecurity, answer: SaslAuthenticateResponse) -> None:
    if answer.error_code:
        raise SaslAuthenticationError(
            f"{endpoint} refused the login of user {security.username!r}: the password is wrong or "
            "was changed, or there is no such user. Check sasl.username and sasl.password"
        )
