"""Encode, decode and check the messages of PLAIN (RFC 4616) and HTTP Basic (RFC 7617).

The message contains the password itself, so clients send it over TLS only. The broker checks the
password against the stored keys of SCRAM.
"""

from __future__ import annotations

import base64
import hmac
from typing import NamedTuple

from broker_lite.errors import SaslAuthenticationError
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import KeyPair, ScramCredential, derive_keys

MESSAGE_BYTES_MAX = 1024
"""Maximum bytes of a client's message. RFC 4616 limits names and password to 255 bytes each."""


class PlainPassword(NamedTuple):
    """A password that Spark's driver pickles into its tasks. With SCRAM the driver would send
    derived keys instead, but PLAIN needs the password itself."""

    text: str

    def __repr__(self) -> str:
        return "PlainPassword([hidden])"


class PlainClaim(NamedTuple):
    """The content of a client's message: a user name, and a password that must still be checked."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"PlainClaim({self.user!r}, [hidden])"


def plain_message(user: str, password: str) -> bytes:
    """Return the only message that a client sends in a login with PLAIN. Raises
    SaslAuthenticationError for a NUL character, which separates the parts of the message."""
    if "\0" in user + password:
        raise SaslAuthenticationError("PLAIN: the user name or the password has a NUL character")
    return f"\0{user}\0{password}".encode()


def parse_plain(message: bytes) -> PlainClaim:
    """Parse a client's message. Raises SaslAuthenticationError for a malformed message, and for an
    authorization id that names another user (CVE-2017-12610)."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslAuthenticationError(
            f"PLAIN: the message has {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are allowed"
        )
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslAuthenticationError("PLAIN: the message is not UTF-8") from None
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise SaslAuthenticationError(
            "PLAIN: the message does not consist of authorization id, user, password"
        )
    authorization, user, password = parts
    if authorization not in ("", user):
        raise SaslAuthenticationError(
            "PLAIN: the authorization id names another user than the login; leave it empty"
        )
    return PlainClaim(user, password)


def parse_basic(authorization: str) -> PlainClaim:
    """Parse an ``Authorization`` header of HTTP Basic (RFC 7617). Raises SaslAuthenticationError
    for another scheme, and for the same reasons as ``parse_plain``."""
    scheme, _, text = authorization.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError
        user, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
    except ValueError:
        raise SaslAuthenticationError("the Authorization header is not valid HTTP Basic") from None
    return parse_plain(b"\0" + user + b"\0" + (password if colon else b""))


def proven_pair(
    claim: PlainClaim, mechanism: ScramMechanism, credential: ScramCredential
) -> KeyPair | None:
    """Return the stored keys of the user that match the password in ``claim``; None if the password
    is wrong. This takes about 2 ms."""
    derived = derive_keys(mechanism, claim.password, credential.salt, credential.iterations).pair()
    for pair in credential.pairs:
        if hmac.compare_digest(derived.stored_key, pair.stored_key):
            return pair
    return None
