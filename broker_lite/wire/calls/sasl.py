"""The client's requests SaslHandshake v1 and SaslAuthenticate v1, with which it logs in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import I32, Reader, Writer


class SaslHandshakeResponse(NamedTuple):
    """The answer to SaslHandshake. ``mechanisms`` are the login mechanisms that the broker
    accepts."""

    error_code: int
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest:
    """Choose the SASL mechanism (the login procedure), such as SCRAM-SHA-256. The login follows."""

    API_KEY: ClassVar[int] = ApiKey.SASL_HANDSHAKE
    VERSION: ClassVar[int] = 1

    mechanism: str

    def encode(self, writer: Writer) -> None:
        writer.classic_nullable_string(self.mechanism)

    @staticmethod
    def decode(reader: Reader) -> SaslHandshakeResponse:
        code = reader.i16()
        names = tuple(reader.classic_string() for _ in range(reader.classic_count()))
        return SaslHandshakeResponse(code, names)


class SaslAuthenticateResponse(NamedTuple):
    """The answer to SaslAuthenticate. ``auth_bytes`` is the server's next message of the SASL
    mechanism. ``session_lifetime_ms`` is the time until the client must log in again; 0 means
    never."""

    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest:
    """Send one message of the chosen SASL mechanism. The answer has the server's next message."""

    API_KEY: ClassVar[int] = ApiKey.SASL_AUTHENTICATE
    VERSION: ClassVar[int] = 1

    auth_bytes: bytes = field(repr=False)

    def encode(self, writer: Writer) -> None:
        writer.buffer += I32.pack(len(self.auth_bytes)) + self.auth_bytes

    @staticmethod
    def decode(reader: Reader) -> SaslAuthenticateResponse:
        code, message = reader.i16(), reader.classic_nullable_string()
        view = reader.classic_view()
        return SaslAuthenticateResponse(code, message, bytes(view or b""), reader.i64())
