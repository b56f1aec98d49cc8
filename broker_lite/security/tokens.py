"""Check access tokens of OAUTHBEARER, which are signed JWTs, against the keys of their issuer.

The library PyJWT checks signatures. This module adds the rules of RFC 8725. The issuer's key, and
not the token, determines which algorithms are allowed: never ``none`` or a shared secret. A
token is refused if its header says where its key is (``jku``, ``x5u``, ``jwk``, ``x5c``). The
caller fetches the issuer's keys and passes the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt

from broker_lite.errors import InvalidConfigError, SaslAuthenticationError
from broker_lite.security.bearer import CheckedToken

KEYS_MAX = 100
"""Maximum keys in the key set of an issuer."""
PRINCIPAL_LENGTH_MAX = 255
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_REFUSED_HEADERS = ("jku", "x5u", "jwk", "x5c", "crit")
RSA_BITS_MIN = 2048


class TokenKey(NamedTuple):
    """A public key, and the signature algorithms for which it may be used."""

    key: Any
    algorithms: tuple[str, ...]


TokenKeys = Mapping[str, TokenKey]
"""The public keys of an issuer, by key id (``kid``)."""


class TokenRules(NamedTuple):
    """The rules for a valid token.

    The token's issuer must be ``issuer``, and its audience one of ``audiences``. ``name_claim`` is
    the claim with the user's name. ``skew_ms`` is the maximum time in ms by which the issuer's
    clock may be ahead of the broker's clock. An expired token is never valid, whatever the skew."""

    issuer: str
    audiences: tuple[str, ...]
    name_claim: str = "sub"
    skew_ms: int = 30_000


def parse_keys(text: bytes) -> TokenKeys:
    """Return the keys in a JWKS document (RFC 7517) that may check signatures of tokens. Keys of
    unknown types are ignored.

    Raises InvalidConfigError if the document is not a JWKS or has no usable key."""
    try:
        rows = json.loads(text)["keys"]
        given = [row for row in rows if isinstance(row, dict)][: KEYS_MAX + 1]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidConfigError(
            'the document is not a JWKS (key set), which is a JSON object with "keys"'
        ) from None
    if len(given) > KEYS_MAX:
        raise InvalidConfigError(f"the JWKS document has more than {KEYS_MAX} keys; remove some")
    keys: dict[str, TokenKey] = {}
    for row in given:
        key = _key(row)
        if key is not None:
            keys[str(row.get("kid", ""))] = key
    if not keys:
        raise InvalidConfigError(
            "the JWKS document has no key for signatures of the types RSA (2,048 bits or more), EC "
            "or OKP"
        )
    return keys


def _key(row: Mapping[str, Any]) -> TokenKey | None:
    """Return the key in ``row`` of a JWKS document; None if it cannot check signatures of
    tokens."""
    algorithms = {
        "RSA": _RSA,
        "EC": (_CURVES.get(str(row.get("crv")), ""),),
        "OKP": ("EdDSA",),
    }.get(str(row.get("kty")), ())
    named = row.get("alg")
    if named is not None and row.get("kty") != "OKP":
        algorithms = tuple(each for each in algorithms if each == named)
    if not any(algorithms) or row.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in row.items() if name != "d"}
    try:
        key = jwt.PyJWK.from_dict(public, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if row["kty"] == "RSA" and key.key_size < RSA_BITS_MIN:
        return None
    return TokenKey(key, algorithms)


def key_id_of(token: str) -> str:
    """Return the id (``kid``) of the key that signed the token; empty if the token names no key.

    Raises SaslAuthenticationError for a broken header, and for a header that contains its key or
    the key's address (``jwk``, ``jku`` and the like)."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise SaslAuthenticationError("OAUTHBEARER: the token is not a signed JWT") from None
    for name in _REFUSED_HEADERS:
        if name in header:
            raise SaslAuthenticationError(
                f"OAUTHBEARER: the token's header has {name!r}, which logbus does not accept"
            )
    key_id = header.get("kid", "")
    return key_id if isinstance(key_id, str) else ""


def check_token(token: str, keys: TokenKeys, rules: TokenRules, now_ms: int) -> CheckedToken:
    """Return the user of a token and its expiry time. Raises SaslAuthenticationError, whose message
    is for the broker's log only."""
    key_id = key_id_of(token)
    key = keys.get(key_id)
    if key is None and not key_id and len(keys) == 1:
        key = next(iter(keys.values()))
    if key is None:
        raise SaslAuthenticationError(
            f"OAUTHBEARER: the issuer's key set has no key with the token's key id {key_id[:80]!r}"
        )
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            audience=rules.audiences,
            issuer=rules.issuer,
            options={
                "require": ["iss", "aud", "exp", "sub"],
                # Turn off PyJWT's checks of times, which read the clock. This module reads no
                # clock: this function compares the times below.
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        reason = str(error)[:120]
        raise SaslAuthenticationError(f"OAUTHBEARER: the token is refused: {reason}") from None
    ends_ms = _time_ms(claims, "exp")
    begins_ms = max(_time_ms(claims, name) for name in ("nbf", "iat"))
    if now_ms >= ends_ms:
        raise SaslAuthenticationError(f"OAUTHBEARER: the token expired at {ends_ms} ms since 1970")
    if now_ms < begins_ms - rules.skew_ms:
        raise SaslAuthenticationError(
            f"OAUTHBEARER: the token is valid only from {begins_ms} ms since 1970"
        )
    user = claims.get(rules.name_claim)
    if not isinstance(user, str) or not 0 < len(user) <= PRINCIPAL_LENGTH_MAX:
        raise SaslAuthenticationError(
            f"OAUTHBEARER: the token's claim {rules.name_claim!r} is not a user name"
        )
    if not user.isprintable():
        raise SaslAuthenticationError(
            f"OAUTHBEARER: the token's claim {rules.name_claim!r} is not printable"
        )
    return CheckedToken(user, ends_ms)


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    """Return the time in a claim of a token, in ms since 1970; 0 if the token lacks the claim.
    Raises SaslAuthenticationError if the claim is not a time."""
    value = claims.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SaslAuthenticationError(f"OAUTHBEARER: the token's claim {name!r} is not a time")
    if not 0 <= value < 1 << 43:
        raise SaslAuthenticationError(
            f"OAUTHBEARER: the token's claim {name!r} is out of range: {value} is not from 0 to "
            f"{(1 << 43) - 1} seconds"
        )
    return int(value * 1000)
