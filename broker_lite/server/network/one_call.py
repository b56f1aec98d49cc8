"""Send one request to another broker over a connection of its own, for rare requests. Loop
thread."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

from broker_lite.errors import ProtocolError
from broker_lite.model import Endpoint
from broker_lite.wire.api import Call, decode_call, encode_call
from broker_lite.wire.primitives import I32

T = TypeVar("T")


async def ask(endpoint: Endpoint, call: Call[T], client_id: str, frame_bytes_max: int) -> T:
    """Send the request and return the answer. Raise OSError, asyncio.IncompleteReadError or
    ProtocolError."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        writer.write(encode_call(call, 1, client_id))
        (size,) = I32.unpack(await reader.readexactly(I32.size))
        if not 0 <= size <= frame_bytes_max:
            raise ProtocolError(
                f"the answer's length {size} is not within 0 to {frame_bytes_max} bytes"
            )
        return decode_call(call, memoryview(await reader.readexactly(size)))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
