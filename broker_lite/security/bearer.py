"""Encode and decode the client's OAUTHBEARER message (RFC 7628), which contains an access token."""

from __future__ import annotations

import base64
import json
import re
from typing import NamedTuple

from broker_lite.errors import SaslAuthenticationError

MESSAGE_BYTES_MAX = 12 << 10
"""Maximum bytes of a client's message. The request that carries it has at most 16 KiB."""
_MESSAGE = re.compile(r"n,(?:a=([^,\x00\x01]*))?,\x01((?:[A-Za-z]+=[^\x00\x01]*\x01)*)\x01")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class AccessToken(NamedTuple):
    """An access token and its expiry time (wall-clock ms)."""

    text: str
    ends_ms: int

    def __repr__(self) -> str:
        return f"AccessToken([hidden], ends_ms={self.ends_ms})"


class BearerClaim(NamedTuple):
    """The content of a client's OAUTHBEARER message: an access token and the requested user.

    If ``authorization`` is empty, the client logs in as the user of the token."""

    authorization: str
    token: str

    def __repr__(self) -> str:
        return f"BearerClaim({self.authorization!r}, [hidden])"


class CheckedToken(NamedTuple):
    """The user of a valid token, and the token's expiry time (wall-clock ms)."""

    user: str
    ends_ms: int


def bearer_message(token: str) -> bytes:
    """Return the only message that a client sends in a login with OAUTHBEARER. Raises
    SaslAuthenticationError if ``token`` has a character that no token can have."""
    if _TOKEN.fullmatch(token) is None:
        raise SaslAuthenticationError(
            "OAUTHBEARER: the access token has a character that tokens cannot have"
        )
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def parse_bearer(message: bytes) -> BearerClaim:
    """Parse a client's message, without its extensions (RFC 7628). Raises SaslAuthenticationError
    for a malformed message."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslAuthenticationError(
            f"OAUTHBEARER: the message has {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are "
            "allowed"
        )
    try:
        match = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise SaslAuthenticationError("OAUTHBEARER: the message does not have the form of RFC 7628")
    values = [row[5:] for row in match[2].split("\x01") if row[:5].lower() == "auth="]
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or _TOKEN.fullmatch(token) is None:
        raise SaslAuthenticationError("OAUTHBEARER: the message has no bearer token")
    return BearerClaim(match[1] or "", token)


def end_of_token(token: str) -> int:
    """Return the expiry time of a JWT from its claim ``exp`` (wall-clock ms); 0 without this claim.

    The signature is not checked: a client uses the time only to fetch the next token."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return int(claims["exp"]) * 1000
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return 0
