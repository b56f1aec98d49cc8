"""Tests of OAuth access tokens: the OAUTHBEARER message, key sets, and the checks of a token."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from support.token_issuer import AUDIENCE, ISSUER, Issuer

from broker_lite.errors import InvalidConfigError, SaslAuthenticationError
from broker_lite.security.bearer import (
    AccessToken,
    BearerClaim,
    bearer_message,
    end_of_token,
    parse_bearer,
)
from broker_lite.security.tokens import TokenRules, check_token, parse_keys

IN_FAR_FUTURE = 4_000_000_000
"""Seconds since 1970: the year 2096."""
RULES = TokenRules(ISSUER, (AUDIENCE, "other"))
ONE = Issuer()
KEYS = parse_keys(ONE.key_set())


def now_ms() -> int:
    return int(time.time() * 1000)


def user_of(token: str, rules: TokenRules = RULES, at_ms: int | None = None) -> str:
    return check_token(token, KEYS, rules, now_ms() if at_ms is None else at_ms).user


@pytest.mark.parametrize(
    ("kind", "algorithms", "refused"),
    [
        ("RSA", ("RS256", "PS512"), "HS256"),
        ("EC", ("ES384",), "ES256"),
        ("OKP", ("EdDSA",), "HS256"),
    ],
)
def test_key_of_the_issuer_determines_the_signature_algorithm(
    kind: str, algorithms: tuple[str, ...], refused: str
) -> None:
    made: Any = {
        "RSA": lambda: rsa.generate_private_key(65537, 2048),
        "EC": lambda: ec.generate_private_key(ec.SECP384R1()),
        "OKP": ed25519.Ed25519PrivateKey.generate,
    }[kind]()
    library = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}[kind]
    row = library.to_jwk(made.public_key(), as_dict=True)
    keys = parse_keys(json.dumps({"keys": [{**row, "kid": "k"}]}).encode())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "carol", "exp": time.time() + 60}
    for algorithm in algorithms:
        token = jwt.encode(claims, made, algorithm, {"kid": "k"})
        assert check_token(token, keys, RULES, now_ms()).user == "carol"
    # The token's own header must not choose another algorithm.
    body = jwt.encode(claims, made, algorithms[0], {"kid": "k"}).split(".")[1]
    header = base64.urlsafe_b64encode(json.dumps({"alg": refused, "kid": "k"}).encode())
    with pytest.raises(SaslAuthenticationError):
        check_token(f"{header.decode().rstrip('=')}.{body}.AAAA", keys, RULES, now_ms())


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://another.example"}, "(?i)issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "another"}, "(?i)audience"),
        ({"aud": None}, "(?i)aud"),
        ({"exp": None}, "exp"),
        ({"sub": None}, "sub"),
        ({"exp": 1_000_000_000}, "expired at"),
        ({"exp": "never"}, "not a time"),
        ({"exp": 1e300}, "out of range"),
        ({"exp": 10**400}, "out of range"),
        ({"exp": float("nan")}, "out of range"),
        ({"exp": IN_FAR_FUTURE, "nbf": IN_FAR_FUTURE - 1}, "is valid only from"),
        ({"exp": IN_FAR_FUTURE, "iat": IN_FAR_FUTURE - 1}, "is valid only from"),
        ({"sub": "a\nb"}, "not printable"),
        ({"sub": ""}, "is not a user name"),
        ({"sub": "x" * 256}, "is not a user name"),
        ({"headers": {"kid": "second"}}, "no key with the token's key id 'second'"),
        ({"headers": {"kid": "first", "jku": "https://x"}}, "has 'jku'"),
        ({"headers": {"kid": "first", "x5u": "https://x"}}, "has 'x5u'"),
        ({"headers": {"kid": "first", "jwk": {}}}, "has 'jwk'"),
    ],
)
def test_token_with_wrong_claims_or_headers_is_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(SaslAuthenticationError, match=reason):
        user_of(ONE.token(**claims))


def test_token_without_a_signature_or_signed_with_another_key_is_refused() -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "carol", "exp": time.time() + 60}
    unsigned = jwt.encode(claims, None, "none", {"kid": "first"})
    for token in (unsigned, Issuer().token(), "a.b.c", "", "x" * 100):
        with pytest.raises(SaslAuthenticationError):
            user_of(token)


def test_user_name_of_a_token_is_read_from_the_configured_claim() -> None:
    assert user_of(ONE.token("carol")) == "carol"
    assert user_of(ONE.token(aud=["x", "other"], iat=None)) == "carol"
    assert user_of(ONE.token(headers={})) == "carol"  # The key set has only one key.
    assert user_of(ONE.token(client="job-7"), RULES._replace(name_claim="client")) == "job-7"
    with pytest.raises(SaslAuthenticationError, match="claim 'client' is not a user name"):
        user_of(ONE.token(client=7), RULES._replace(name_claim="client"))


def test_token_is_valid_until_its_expiry_time() -> None:
    token = ONE.token(exp=2_000_000_000, iat=1_000_000_000)
    assert check_token(token, KEYS, RULES, 1_999_999_999_999).ends_ms == 2_000_000_000_000
    with pytest.raises(SaslAuthenticationError, match="expired at"):
        user_of(token, at_ms=2_000_000_000_000)
    assert end_of_token(token) == 2_000_000_000_000
    assert [end_of_token(each) for each in ("", "a.b", "a.e30.c")] == [0, 0, 0]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "shared"}]}',
        b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"}]}',
        b'{"keys": [' + b",".join([b"{}"] * 101) + b"]}",
        b"[" * 100_000,
    ],
)
def test_key_set_without_a_usable_key_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidConfigError, match="document"):
        parse_keys(document)


def test_json_web_keys_unsuitable_for_tokens_are_ignored() -> None:
    row = json.loads(ONE.key_set())["keys"][0]
    short = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    rows = [row, {**row, "kid": "enc", "use": "enc"}, {**short, "kid": "short"},
            {**row, "kid": "other", "alg": "ES512"}]  # fmt: skip
    assert set(parse_keys(json.dumps({"keys": rows}).encode())) == {"first"}


def test_oauthbearer_message_of_rfc_7628_carries_the_token() -> None:
    assert parse_bearer(bearer_message("a.b-c_d")) == BearerClaim("", "a.b-c_d")
    given = b"n,a=carol,\x01host=h\x01port=1\x01auth=bearer x.y\x01logical=c\x01\x01"
    assert parse_bearer(given) == BearerClaim("carol", "x.y")
    assert "secret" not in repr(BearerClaim("", "secret")) + repr(AccessToken("secret", 1))


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01", b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01", b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 13_000 + b"\x01\x01",
    ],
)  # fmt: skip
def test_malformed_oauthbearer_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationError, match="OAUTHBEARER: "):
        parse_bearer(message)
