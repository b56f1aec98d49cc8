"""A blocking connection with which tests send single requests and examine the responses."""

from __future__ import annotations

import itertools
import socket
from typing import Any, TypeVar

from broker_lite.wire.api import Call, correlation_id_of, decode_call, encode_call
from broker_lite.wire.calls.cluster import MetadataRequest
from broker_lite.wire.frame import FrameReceiver
from support.patience import until

Answer = TypeVar("Answer")


class PlainConnection:
    """A blocking connection for one thread. Methods raise EOFError when the broker closes it."""

    def __init__(self, address: str, timeout_s: float = 30.0, *, source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s, (source, 0))
        self._receiver = FrameReceiver(64 << 20)
        self._numbers = itertools.count(1)

    def fileno(self) -> int:
        """Return the socket's descriptor, for select."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """Send bytes as they are, even if they are no valid request."""
        self._socket.sendall(data)

    def receive(self) -> memoryview:
        """Return the next frame that the broker sends."""
        while True:
            size = self._socket.recv_into(self._receiver.buffer())
            if size == 0:
                raise EOFError("the broker closed the connection")
            frames = self._receiver.received(size)
            if frames:
                (frame,) = frames
                return frame

    def receive_all(self, count: int) -> list[memoryview]:
        """Return the next ``count`` frames, which may arrive together."""
        frames: list[memoryview] = []
        while len(frames) < count:
            size = self._socket.recv_into(self._receiver.buffer())
            if size == 0:
                raise EOFError("the broker closed the connection")
            frames += self._receiver.received(size)
        assert len(frames) == count
        return frames

    def call(self, request: Call[Answer], client_id: str | None = "tests") -> Answer:
        """Send a request of the logbus client; return the response."""
        number = next(self._numbers)
        self.send(encode_call(request, number, client_id))
        frame = self.receive()
        assert correlation_id_of(frame) == number
        return decode_call(request, frame)

    def call_library(self, request: Any, response_kind: Any) -> Any:
        """Send a request object of kafka-python, in the object's version; return the response."""
        number = next(self._numbers)
        request.with_header(correlation_id=number, client_id="tests")
        self.send(request.encode(header=True, framed=True))
        answer = response_kind.decode(
            bytes(self.receive()), version=request.API_VERSION, header=True
        )
        assert answer.header.correlation_id == number
        return answer

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> PlainConnection:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def until_known(bootstrap_servers: str, topic: str, topic_id: str) -> None:
    """Wait until each of these brokers knows the topic by this topic id."""
    for address in bootstrap_servers.split(","):
        with PlainConnection(address) as connection:
            until(
                lambda connection=connection: connection.call(MetadataRequest((topic,))).topics,
                lambda topics: topics[0].topic_id == topic_id,
                what=f"{address} has no topic {topic} with this id",
            )
