"""Minimal servers in Python, with which benchmarks 7, 10, 13 and 14 measure their floors.

A *floor* is the result of a program that does only the unavoidable work of a benchmark.

    python -P -m peers.bare turns|flushed|silent DESCRIPTOR FOLDER PARTITIONS

Each program serves the listening socket DESCRIPTOR in one thread without an event loop:

* ``turns`` receives a record on one connection, writes, flushes and acknowledges it, and sends it
  to the other connection, without protocol or checks.
* ``flushed`` and ``silent`` support the part of Kafka's protocol that a producer needs. ``flushed``
  writes and flushes each request before it answers; ``silent`` answers and stores nothing.

``BareServer`` runs a program in a process that ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_lite.local.guard import Guard
from broker_lite.record.batch import read_header
from broker_lite.wire import produce, tables
from broker_lite.wire.api import ApiKey, RequestHeader, parse_header
from broker_lite.wire.frame import FrameReceiver

FRAME_BYTES_MAX = 64 << 20
LENGTH = struct.Struct(">i")
TOPIC_ID = uuid.UUID(int=1)
VERSIONS = {
    ApiKey.PRODUCE: 12,
    ApiKey.METADATA: 12,
    ApiKey.API_VERSIONS: 4,
    ApiKey.INIT_PRODUCER_ID: 4,
}
SETTINGS = {
    "turns": "one thread: receive, write, flush, answer, send on; no protocol, nothing checked",
    "flushed": "one thread: receive, write, flush what has arrived, answer; nothing checked",
    "silent": "one thread: receive and answer; nothing is written",
}


class BareServer:
    """Runs one of the minimal servers of this module in a process that ends with the context."""

    def __init__(self, program: str, partitions: int = 4) -> None:
        """Prepare to run ``program``, one of the minimal servers in this module.

        ``partitions`` is the partition count of each topic, if the program has topics.
        """
        self.settings = SETTINGS[program]
        self.program = program
        self._partitions = partitions
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> BareServer:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-"))
        self._folder = Path(folder)
        guard = Guard()
        self._stack.callback(guard.close)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            descriptor = listener.fileno()
            self.bootstrap_servers = f"127.0.0.1:{listener.getsockname()[1]}"
            command = [sys.executable, "-P", "-m", "peers.bare", self.program]
            self._process = guard.spawn(
                [*command, str(descriptor), folder, str(self._partitions)],
                Path(folder, "out"),
                pass_fds=(descriptor,),
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def processes(self) -> Mapping[str, list[int]]:
        return {"broker": [self._process.pid]}

    def stored_mb(self) -> float:
        """Return the MB that the server has written."""
        return sum(path.stat().st_size for path in self._folder.iterdir()) / 1e6


def received(sock: socket.socket) -> bytes:
    """Return the next value that arrives (after its length) on a connection; b"" at its end."""
    data = sock.recv(65536)
    while data and len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        data += sock.recv(65536)
    return data[LENGTH.size :]


def framed(value: bytes) -> bytes:
    return LENGTH.pack(len(value)) + value


def turns(listener: socket.socket, folder: Path) -> None:
    """Write and flush each value of a sender, acknowledge it, and send it to a reader.

    Serve one pair of connections after another; the sender connects first."""
    file = os.open(folder / "log", os.O_WRONLY | os.O_CREAT, 0o640)
    size = 0
    while True:
        sender, reader = (_accepted(listener) for _ in range(2))
        with sender, reader:
            while value := received(sender):
                size += os.pwrite(file, value, size)
                os.fdatasync(file)
                sender.sendall(framed(b"\0"))
                reader.sendall(framed(value))


def _accepted(listener: socket.socket) -> socket.socket:
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.receiver = FrameReceiver(FRAME_BYTES_MAX)
        self.out = bytearray()


class KafkaServer:
    """A server with the part of Kafka's protocol that a producer needs.

    Every topic exists and has ``partitions`` partitions.
    """

    def __init__(
        self, listener: socket.socket, folder: Path, partitions: int, *, flushes: bool
    ) -> None:
        self._listener = listener
        self._folder = folder
        self._partitions = partitions
        self._flushes = flushes
        self._selector = selectors.DefaultSelector()
        self._files: dict[tuple[str, int], int] = {}
        self._dirty: set[int] = set()
        self._offsets: dict[tuple[str, int], int] = {}

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        while True:
            spoken: list[_Connection] = []
            for key, _ in self._selector.select():
                if key.data is None:
                    sock = _accepted(self._listener)
                    self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))
                elif self._take(key.data):
                    spoken.append(key.data)
            for file in self._dirty:
                os.fdatasync(file)
            self._dirty.clear()
            for connection in spoken:
                connection.socket.sendall(connection.out)
                connection.out.clear()

    def _take(self, connection: _Connection) -> bool:
        """Answer all requests that have arrived completely; return whether there was any."""
        count = 0
        with contextlib.suppress(ConnectionResetError):
            count = connection.socket.recv_into(connection.receiver.buffer())
        if not count:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            return False
        for frame in connection.receiver.received(count):
            connection.out += self._answer(frame)
        return bool(connection.out)

    def _answer(self, frame: memoryview) -> bytes:
        request = parse_header(frame)
        if request.api_key == ApiKey.PRODUCE:
            return self._produce(request, frame)
        key, version = request.api_key, request.api_version
        message = tables.decode(key, version, frame, request.body_at)
        answers = {
            ApiKey.API_VERSIONS: _api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.INIT_PRODUCER_ID: _producer_id,
        }
        answer = answers[ApiKey(key)](message)
        return bytes(tables.encode(key, version, request.correlation_id, answer))

    def _produce(self, request: RequestHeader, frame: memoryview) -> bytes:
        message = produce.decode_request(frame, request.api_version, request.body_at)
        topics = [
            produce.ProducedTopic(
                topic.name,
                topic.topic_id,
                [self._append(topic.name, row.partition, row.records) for row in topic.partitions],
            )
            for topic in message.topics
        ]
        response = produce.ProduceResponse(topics)
        return produce.encode_response(response, request.api_version, request.correlation_id)

    def _append(
        self, topic: str, partition: int, records: memoryview | None
    ) -> produce.ProducedPartition:
        assert records is not None
        where = topic, partition
        base = self._offsets.get(where, 0)
        self._offsets[where] = base + read_header(records).record_count
        if self._flushes:
            if where not in self._files:
                path = self._folder / f"{topic}-{partition}"
                self._files[where] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            os.write(self._files[where], records)
            self._dirty.add(self._files[where])
        return produce.ProducedPartition(partition, 0, base, log_start_offset=0)

    def _metadata(self, message: Any) -> Any:
        response, build = tables.MetadataResponse, tables.build
        row = response.MetadataResponseTopic
        host, port = self._listener.getsockname()
        partitions = [
            build(
                row.MetadataResponsePartition, error_code=0, partition_index=number, leader_id=0,
                leader_epoch=0, replica_nodes=[0], isr_nodes=[0], offline_replicas=[],
            )
            for number in range(self._partitions)
        ]  # fmt: skip
        topics = [
            build(row, error_code=0, name=each.name, topic_id=TOPIC_ID, partitions=partitions)
            for each in message.topics or ()
        ]
        broker = build(response.MetadataResponseBroker, node_id=0, host=host, port=port, rack=None)
        return response(brokers=[broker], cluster_id="bare", controller_id=0, topics=topics)


def _api_versions(_: Any) -> Any:
    response = tables.ApiVersionsResponse
    keys = [
        tables.build(response.ApiVersion, api_key=int(key), min_version=0, max_version=version)
        for key, version in VERSIONS.items()
    ]
    return response(
        error_code=0, api_keys=keys, supported_features=[], finalized_features_epoch=-1,
        finalized_features=[],
    )  # fmt: skip


def _producer_id(_: Any) -> Any:
    return tables.InitProducerIdResponse(producer_id=1, producer_epoch=0)


def main(program: str, descriptor: str, folder: str, partitions: str) -> None:
    with socket.socket(fileno=int(descriptor)) as listener:
        if program == "turns":
            turns(listener, Path(folder))
        else:
            flushes = program == "flushed"
            KafkaServer(listener, Path(folder), int(partitions), flushes=flushes).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
