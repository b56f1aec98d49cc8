"""The broker's side of a SCRAM login, with the library ``scramp``.

While a password is rotated, a user has two passwords. Both have the same salt, so the broker sends
one challenge and checks the proof against both. For an unknown user the broker sends a salt that
depends only on the name, so that the challenge does not reveal which users exist.

``scramp`` applies SASLprep to user names, and Kafka does not: the user "\ufb01" could not log in,
and the name would mean the user "fi". ``scramp`` therefore sees ``_NAME_FOR_SCRAMP`` in place of
the name. The proof covers the message with the name that the client sent.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from functools import partial

from scramp.core import ScramException, ScramServer
from scramp.core import ScramMechanism as ScrampMechanism

from broker_lite.errors import SaslAuthenticationError
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import (
    ITERATIONS,
    SALT_BYTES,
    KeyPair,
    ScramCredential,
)

MESSAGE_BYTES_MAX = 4096
"""Maximum bytes of a client's message. The library ``scramp`` has no limit."""


_FIRST = re.compile(r"([^,]*,[^,]*,)n=((?:[^=,\0]|=2C|=3D)+),(.*)", re.DOTALL)
"""The client's first message: the GS2 header, the escaped user name and the nonce."""
_NAME_FOR_SCRAMP = "user"
OLD_LIBRDKAFKA = (
    "librdkafka before 2.6.1, as in Debian's kcat, sends such a nonce; upgrade it, or let its "
    "users log in with PLAIN"
)
"""The likely cause of a wrong nonce in the client's last message. Kafka 4 refuses such a login,
too (CVE-2024-56128)."""
_NO_PAIR = KeyPair(bytes(32), bytes(32))
"""Keys with which the login of an unknown user is checked. ``finish`` refuses every login with
them."""
_NO_CREDENTIAL = ScramCredential(b"", ITERATIONS, (_NO_PAIR,))

_Keys = tuple[bytes, bytes, bytes, int]
"""Salt, stored key, server key and iterations, in the order of the library ``scramp``."""
CredentialOf = Callable[[str], ScramCredential | None]
"""Returns a user's credential for the login's mechanism, or None for an unknown user."""


def fake_credential(mechanism: ScramMechanism, user: str, fake_key: bytes) -> ScramCredential:
    """Return a credential that matches no password. Its salt depends only on the mechanism, the
    user name and ``fake_key``."""
    message = f"{mechanism}:{user}".encode()
    salt = hmac.digest(fake_key, message, hashlib.sha256)[:SALT_BYTES]
    return _NO_CREDENTIAL._replace(salt=salt)


class ScramLogin:
    """One login of a client. ``challenge`` answers the client's first message, and ``finish`` its
    proof.

    ``nonce`` is fresh random text. ``fake_key`` is a secret of the cluster, from which the salts of
    unknown users are derived. After ``finish``, ``user`` is the name of the user, and ``pair`` the
    stored keys that the proof matched."""

    def __init__(
        self, mechanism: ScramMechanism, credential_of: CredentialOf, nonce: str, fake_key: bytes
    ) -> None:
        self._mechanism = mechanism
        self._credential_of = credential_of
        self._nonce = nonce
        self._fake_key = fake_key
        self._servers: list[ScramServer] = []
        self._credential = _NO_CREDENTIAL
        self.user = ""
        self.pair: KeyPair | None = None

    def challenge(self, client_first: bytes) -> bytes:
        """Return the broker's challenge to the client's first message: nonce, salt and iteration
        count. Raises SaslAuthenticationError for a malformed message."""
        found = _FIRST.fullmatch(_text(client_first))
        if found is None:
            raise SaslAuthenticationError(
                "SCRAM: the first message does not consist of header, user name and nonce"
            )
        header, name, rest = found.groups()
        self.user = name.replace("=2C", ",").replace("=3D", "=")
        known = self._credential_of(self.user)
        self._credential = known or fake_credential(self._mechanism, self.user, self._fake_key)
        challenge = ""
        try:
            for pair in self._credential.pairs:
                server = self._server(pair, f"{header}n={_NAME_FOR_SCRAMP},{rest}")
                server.client_first_bare = f"n={name},{rest}"
                challenge = server.get_server_first()
                self._servers.append(server)
        except ScramException as error:
            raise SaslAuthenticationError(f"SCRAM: {error}") from None
        return challenge.encode()

    def _server(self, pair: KeyPair, client_first: str) -> ScramServer:
        mechanism = ScrampMechanism(self._mechanism.value)
        server = mechanism.make_server(partial(self._answer, pair), s_nonce=self._nonce)
        server.set_client_first(client_first)
        return server

    def _answer(self, pair: KeyPair, _user: str) -> _Keys:
        return self._credential.salt, *pair, self._credential.iterations

    def finish(self, client_final: bytes) -> bytes:
        """Check the client's proof in its last message, and return the broker's own proof. Raises
        SaslAuthenticationError for a wrong password, an unknown user or a malformed message."""
        text = _text(client_final)
        reason = "no challenge was sent"
        for pair, server in zip(self._credential.pairs, self._servers, strict=False):
            try:
                server.set_client_final(text)
                proof: str = server.get_server_final()
            except ScramException as error:
                reason = str(error)
                if "nonce" in reason:
                    reason += f" ({OLD_LIBRDKAFKA})"
                continue
            if pair is not _NO_PAIR:
                self.pair = pair
                return proof.encode()
        raise SaslAuthenticationError(f"SCRAM: {reason}")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslAuthenticationError(
            f"SCRAM: a message of {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are allowed"
        )
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslAuthenticationError("SCRAM: the message is not UTF-8") from None
