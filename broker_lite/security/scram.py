"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): keys, and the client's side of a login.

A client needs the password only once, to derive ``ScramKeys`` from it. With these keys it can log
in again, but only to a cluster that stores the same salt for the user. Spark's driver therefore
sends its executors the keys instead of the password. As in Kafka, user names and passwords are
UTF-8 without SASLprep."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import SaslAuthenticationError
from broker_lite.model import ScramMechanism

ITERATIONS = 8192
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
"""Bounds of a credential's iteration count, as in Kafka's ``ScramMechanism``. With more iterations,
a server could overload its clients."""
SALT_BYTES = 16
MESSAGE_BYTES_MAX = 8192
"""Maximum bytes of a server's message that a client accepts."""
_NO_BINDING = "n,,"
"""The GS2 header (RFC 5802) of a client without channel binding and authorization id."""


class KeyPair(NamedTuple):
    """The keys that a server stores for one password. They verify a login, but no client can log in
    with them."""

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "KeyPair([hidden])"


class ScramKeys(NamedTuple):
    """The keys with which a client logs in without the password, for one mechanism, salt and
    iteration count."""

    mechanism: ScramMechanism
    salt: bytes
    iterations: int
    client_key: bytes
    server_key: bytes

    def pair(self) -> KeyPair:
        """Return the keys that a server stores to verify logins with these client keys."""
        stored_key = hashlib.new(self.mechanism.digest, self.client_key).digest()
        return KeyPair(stored_key, self.server_key)

    def __repr__(self) -> str:
        return f"ScramKeys({self.mechanism}, [hidden])"


class ScramCredential(NamedTuple):
    """A user's stored keys for one mechanism.

    ``pairs`` has one pair of keys for each valid password, newest first, at most two while a
    password is rotated. Both have the same salt. The older password expires at ``old_until_ms``
    (wall time in ms)."""

    salt: bytes
    iterations: int
    pairs: tuple[KeyPair, ...]
    old_until_ms: int = 0

    def at(self, now_ms: int) -> ScramCredential:
        """Return the credential as it is valid at ``now_ms`` (wall clock): without the older
        password, if that has expired."""
        if len(self.pairs) == 1 or now_ms < self.old_until_ms:
            return self
        return self._replace(pairs=self.pairs[:1])


UserCredentials = Mapping[ScramMechanism, ScramCredential]
"""The credentials of one user, by mechanism."""


def derive_keys(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> ScramKeys:
    """Return the keys of a password. With 8,192 iterations this takes about 2 ms."""
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    return keys_of_salted(mechanism, salted, salt, iterations)


def keys_of_salted(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramKeys:
    """Return the keys of a password that is salted already (hashed with salt and iterations), as
    Kafka's tools send it to brokers."""
    client_key = _hmac(mechanism, salted_password, b"Client Key")
    server_key = _hmac(mechanism, salted_password, b"Server Key")
    return ScramKeys(mechanism, salt, iterations, client_key, server_key)


class ScramClient:
    """One login of a user, seen from the client.

    The client sends the message of ``first``, answers the server's challenge with the message of
    ``final``, and checks the server's last message with ``verify``. ``secret`` is the password, or
    the keys of an earlier login. ``nonce`` is fresh random text without commas. Errors are
    SaslAuthenticationError and never contain the secret."""

    def __init__(
        self, mechanism: ScramMechanism, user: str, secret: str | ScramKeys, nonce: str
    ) -> None:
        self._mechanism = mechanism
        self._user = user
        self._secret = secret
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._signature = b""
        self.keys: ScramKeys | None = secret if isinstance(secret, ScramKeys) else None
        """The keys of this login, with which a client can log in again without the password. Given
        a password, ``final`` derives them."""

    def first(self) -> bytes:
        """Return the client's first message."""
        return (_NO_BINDING + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's last message, which proves that it knows the password.
        ``server_first``, the challenge, has the nonce, the salt and the iteration count."""
        text = _text(server_first)
        fields = _fields(text)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise _refused("the server's nonce does not continue the client's")
        keys = self._keys(_base64(fields.get("s", "")), fields.get("i", ""))
        without_proof = f"c={_base64_text(_NO_BINDING.encode())},r={nonce}"
        message = f"{self._first_bare},{text},{without_proof}".encode()
        client_signature = _hmac(self._mechanism, keys.pair().stored_key, message)
        proof = bytes(a ^ b for a, b in zip(keys.client_key, client_signature, strict=True))
        self._signature = _hmac(self._mechanism, keys.server_key, message)
        return f"{without_proof},p={_base64_text(proof)}".encode()

    def _keys(self, salt: bytes, iterations_text: str) -> ScramKeys:
        if not iterations_text.isascii() or not iterations_text.isdigit():
            raise _refused(f"the server's iteration count {iterations_text[:20]!r} is not a number")
        iterations = int(iterations_text[:10])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX or not salt:
            raise _refused(
                f"the server asks for {iterations} iterations; "
                f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
            )
        if isinstance(self._secret, str):
            self.keys = derive_keys(self._mechanism, self._secret, salt, iterations)
            return self.keys
        if (self._secret.salt, self._secret.iterations) != (salt, iterations):
            raise _refused(
                f"the password of user {self._user!r} has changed since the keys were derived; "
                "start the application again"
            )
        return self._secret

    def verify(self, server_final: bytes) -> None:
        """Verify the server's last message, which proves that the server has the user's keys. A
        server without this proof may be an impostor."""
        fields = _fields(_text(server_final))
        if "e" in fields:
            raise _refused(f"the server refused user {self._user!r}: {fields['e'][:80]}")
        signature = _base64(fields.get("v", ""))
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise _refused("the server does not know the user's password; it may be an impostor")


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.digest)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise _refused(
            f"the server's message has {len(message)} bytes, more than {MESSAGE_BYTES_MAX}"
        )
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise _refused("the server's message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    """Return the attributes of a message (``r=…,s=…``) by their letters. Raises
    SaslAuthenticationError for a malformed message, and for a mandatory extension (``m``)."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        if part[1:2] != "=" or part[0] in fields or part[0] == "m":
            raise _refused("the server's message is not SCRAM")
        fields[part[0]] = part[2:]
    return fields


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise _refused("the server's message is not SCRAM") from None


def _base64_text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _refused(reason: str) -> SaslAuthenticationError:
    return SaslAuthenticationError(f"login with SCRAM failed: {reason}")
