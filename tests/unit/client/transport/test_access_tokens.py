"""Tests of unusable answers of a token issuer."""

from __future__ import annotations

from typing import Any

import pytest

from broker_lite.client.transport.access_tokens import token_of
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import NetworkError, SaslAuthenticationError


def security(url: str) -> ClientSecurity:
    return ClientSecurity(
        "SASL_SSL", mechanism="OAUTHBEARER", username="id", secret=Secret("of id"), token_url=url
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"no JSON",
        b'{"access_token": 5}',
        b'{"access_token": "t", "expires_in": "soon"}',
        b'{"access_token": "t", "expires_in": 1e400}',
        b'{"access_token": "t", "expires_in": NaN}',
        b'{"access_token": "\\ud800"}',
    ],
)
def test_unusable_answer_of_a_token_issuer_is_a_login_error(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: an infinite lifetime raised OverflowError and a token that is no ASCII raised
    UnicodeEncodeError, which ended the client's thread."""

    def fetch(*_: Any, **__: Any) -> bytes:
        return answer

    monkeypatch.setattr("broker_lite.net.https.fetch_https", fetch)
    with pytest.raises(SaslAuthenticationError, match="has no access_token"):
        token_of(security("https://issuer"))


def test_malformed_host_name_of_a_token_issuer_is_a_network_error() -> None:
    """Regression: the name raised UnicodeError, which ended the client's thread."""
    with pytest.raises(NetworkError, match="no access token"):
        token_of(security("https://empty..part/"))
