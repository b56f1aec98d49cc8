"""Envelope v0 (KIP-590), with which a broker forwards a client's request to the controller.

The principal (the client's user name) is sent as UTF-8 text, and the client's IP address as its 4
or 16 bytes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int16
from broker_lite.wire.primitives import Reader, Writer


class EnvelopeResponse(NamedTuple):
    """The controller's answer to an Envelope request. ``response`` is the response to the forwarded
    request, a frame without its length; None if ``error_code`` is not 0."""

    response: bytes | None
    error_code: Int16


@dataclass(frozen=True, slots=True)
class EnvelopeRequest(DeclaredCall[EnvelopeResponse]):
    """Forward ``request``, a frame without its length, from the client with the user name
    ``principal`` and the IP address ``host``."""

    API_KEY: ClassVar[int] = ApiKey.ENVELOPE
    VERSION: ClassVar[int] = 0

    request: bytes
    principal: str
    host: str

    def encode(self, writer: Writer) -> None:
        writer.octets(self.request)
        writer.octets(self.principal.encode("utf-8"))
        writer.octets(ipaddress.ip_address(self.host).packed)
        writer.tag_end()

    @classmethod
    def decode_request(cls, reader: Reader) -> EnvelopeRequest:
        """Decode an Envelope request, on the controller. Raises ProtocolError."""
        request, principal, host = reader.view(), reader.view(), reader.view()
        if request is None or principal is None or host is None:
            raise ProtocolError("an Envelope request lacks its request, principal or address")
        try:
            text = str(bytes(principal), "utf-8")
            address = str(ipaddress.ip_address(bytes(host)))
        except ValueError as error:
            raise ProtocolError(
                f"an Envelope request has a malformed principal or address: {error}"
            ) from None
        return reader.ended(EnvelopeRequest(bytes(request), text, address))
