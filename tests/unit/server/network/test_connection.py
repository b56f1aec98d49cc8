"""Tests of a client's connection to a broker: order, limits, back-pressure and closing.

All connections share a memory budget for requests and responses. A *partial request* has not
arrived completely.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

from broker_lite.errors import ProtocolError
from broker_lite.net.transport import PlainTransport
from broker_lite.server.clock import Clock
from broker_lite.server.network.connection import ClientConnection, ResponseSlot
from broker_lite.server.network.context import Session
from broker_lite.server.network.memory_budget import Budget
from broker_lite.wire.fetch import FileRange
from broker_lite.wire.frame import FIRST_BYTES, SCRATCH_BYTES, FrameReceiver


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    """A client's socket, and the broker's connection at the other end of the socket pair."""

    def __init__(
        self,
        begin: Callable[[memoryview, ResponseSlot], None],
        *,
        budget: Budget | None = None,
        requests_max: int = 4,
        frame_bytes_max: int = 1 << 20,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.socket = ours
        self.ended: list[str] = []
        self.connection = ClientConnection(
            self.loop,
            PlainTransport(theirs),
            Session(1, "127.0.0.1:40000"),
            receiver=FrameReceiver(frame_bytes_max, grows=True),
            budget=budget or Budget(1 << 30),
            clock=Clock(),
            requests_max=requests_max,
            begin=begin,
            ended=lambda _, reason: self.ended.append(reason),
        )

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await self.loop.sock_recv(self.socket, size - len(data))
            if not more:
                break
            data += more
        return data

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0)

    def close(self) -> None:
        self.connection.close("the test is over", quiet=True)
        self.socket.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


def test_responses_are_sent_in_request_order() -> None:
    async def main() -> None:
        replies: list[ResponseSlot] = []
        peer = Peer(lambda frame, reply: replies.append(reply))
        await peer.send(framed(b"1") + framed(b"2") + framed(b"3"))
        await peer.until(lambda: len(replies) == 3)
        replies[2].answer([b"three"])
        replies[1].answer([b"two"])
        assert not peer.connection.is_idle
        replies[0].answer([b"one"])
        assert await peer.receive(11) == b"onetwothree"
        assert peer.connection.is_idle
        peer.close()

    run(main)


def test_response_after_which_the_connection_closes_is_sent_before_the_close() -> None:
    async def main() -> None:
        replies: list[ResponseSlot] = []
        peer = Peer(lambda frame, reply: replies.append(reply))
        await peer.send(framed(b"1") + framed(b"2") + framed(b"3"))
        await peer.until(lambda: len(replies) == 3)
        replies[1].close_after("the login failed")
        replies[1].answer([b"x" * (1 << 20)])
        await peer.send(framed(b"4"))
        await asyncio.sleep(0.01)
        assert len(replies) == 3 and not peer.ended
        replies[2].answer([b"after the end"])
        replies[0].answer([b"first"])
        received = await peer.receive(2 << 20)
        assert received == b"first" + b"x" * (1 << 20)
        assert peer.ended == ["the login failed"]
        peer.socket.close()

    run(main)


def test_request_that_needs_no_response_does_not_block_later_responses() -> None:
    async def main() -> None:
        replies: list[ResponseSlot] = []
        peer = Peer(lambda frame, reply: replies.append(reply))
        await peer.send(framed(b"1") + framed(b"2"))
        await peer.until(lambda: len(replies) == 2)
        replies[1].answer([b"two"])
        replies[0].answer(())
        assert await peer.receive(3) == b"two"
        peer.close()

    run(main)


def test_response_of_bytes_and_parts_of_files_is_sent_in_order() -> None:
    async def main() -> None:
        content = os.urandom(3 << 20)
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()

            def begin(frame: memoryview, reply: ResponseSlot) -> None:
                reply.answer(
                    [
                        b"head",
                        FileRange(file, 10, len(content) - 10),
                        b"",
                        b"mid",
                        FileRange(file, 0, 10),
                        FileRange(file, 0, 0),
                        b"tail",
                    ]
                )

            peer = Peer(begin)
            await peer.send(framed(b"x"))
            expected = b"head" + content[10:] + b"mid" + content[:10] + b"tail"
            assert await peer.receive(len(expected)) == expected
            peer.close()

    run(main)


def test_large_response_to_one_client_does_not_delay_other_clients() -> None:
    """One client reads a response of 64 MB, while another client sends a small request."""

    async def main() -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(64 << 20)
            fat = Peer(lambda _, reply: reply.answer([FileRange(file, 0, 64 << 20)]))
            order: list[str] = []
            thin = Peer(lambda _, reply: (order.append("thin"), reply.answer([b"ok"]))[0])

            async def read_fat() -> None:
                left = 64 << 20
                while left:
                    left -= len(await fat.loop.sock_recv(fat.socket, 1 << 20))
                order.append("fat")

            await fat.send(framed(b"all"))
            reader = asyncio.ensure_future(read_fat())
            await thin.send(framed(b"one"))
            assert await thin.receive(2) == b"ok"
            await reader
            assert order == ["thin", "fat"]
            fat.close()
            thin.close()

    run(main)


def test_broker_pauses_reading_at_the_limit_of_requests_in_flight() -> None:
    async def main() -> None:
        replies: list[ResponseSlot] = []
        peer = Peer(lambda frame, reply: replies.append(reply), requests_max=2)
        await peer.send(b"".join(framed(bytes([n])) for n in range(10)))
        await peer.until(lambda: len(replies) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(replies) == 2
        for n in range(10):
            await peer.until(lambda n=n: len(replies) > n)
            replies[n].answer([bytes([n])])
        assert await peer.receive(10) == bytes(range(10))
        peer.close()

    run(main)


def test_broker_stops_reading_requests_of_a_client_that_reads_no_responses() -> None:
    async def main() -> None:
        begun = 0

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            nonlocal begun
            begun += 1
            reply.answer([bytes(1 << 20)])

        peer = Peer(begin, requests_max=2)
        await peer.send(b"".join(framed(b"x") for _ in range(100)))
        for _ in range(200):
            await asyncio.sleep(0)
        assert begun < 10
        left = 100 << 20
        while left:
            left -= len(await peer.loop.sock_recv(peer.socket, 1 << 20))
        assert begun == 100
        peer.close()

    run(main)


async def turns(count: int = 50) -> None:
    """Run ``count`` iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_broker_pauses_reading_while_requests_exceed_the_memory_budget() -> None:
    async def main() -> None:
        budget = Budget(1000)
        replies: list[ResponseSlot] = []
        first, second = (Peer(lambda _, reply: replies.append(reply), budget=budget) for _ in "ab")
        await first.send(framed(bytes(1001)))
        await first.until(lambda: len(replies) == 1)
        await second.send(framed(b"waits in the socket"))
        await turns()
        assert (len(replies), budget.used_bytes) == (1, 1001)
        replies[0].answer([b"ok"])
        await second.until(lambda: len(replies) == 2)
        replies[1].answer([b"ok"])
        assert await first.receive(2) == await second.receive(2) == b"ok"
        assert budget.used_bytes == 0
        first.close()
        second.close()

    run(main)


def test_partial_request_counts_in_the_memory_budget_only_with_its_received_bytes() -> None:
    """A request that only declares a large length must not use up the budget of other
    connections."""

    async def main() -> None:
        budget = Budget(4 << 20)
        answered = Peer(lambda _, reply: reply.answer([b"ok"]), budget=budget)
        hostile = [
            Peer(lambda _, reply: None, budget=budget, frame_bytes_max=64 << 20) for _ in range(200)
        ]
        for peer in hostile:
            await peer.send(struct.pack(">i", 64 << 20) + bytes(14))
        await turns()
        assert 200 * 14 <= budget.used_bytes <= 200 * FIRST_BYTES
        await answered.send(framed(b"ApiVersions"))
        assert await answered.receive(2) == b"ok"
        for peer in hostile:
            peer.socket.close()
        await answered.until(lambda: all(peer.ended for peer in hostile))
        assert budget.used_bytes == 0
        answered.close()

    run(main)


def test_partial_requests_use_at_most_half_of_the_memory_budget() -> None:
    """Regression: the first 64 KiB of each partial request took memory without a limit, so that
    4,000 connections exceeded the whole budget, and no request was read for 10 seconds."""

    async def main() -> None:
        budget = Budget(8 << 20)
        answered = Peer(lambda _, reply: reply.answer([b"ok"]), budget=budget)
        hostile = [Peer(lambda _, reply: None, budget=budget) for _ in range(200)]
        for peer in hostile:
            await peer.send(framed(bytes(1 << 20))[: 70 << 10])
        await turns()
        # The limit is half of the budget, plus one frame that may exceed the half, plus the
        # minimum of each connection.
        assert budget.used_bytes <= (5 << 20) + 200 * FIRST_BYTES
        assert budget.is_waited_for
        await answered.send(framed(b"ApiVersions"))
        assert await answered.receive(2) == b"ok"
        for peer in hostile:
            peer.close()
        assert budget.used_bytes == 0
        answered.close()

    run(main)


def test_partial_requests_that_together_exceed_the_memory_budget_complete_one_by_one() -> None:
    async def main() -> None:
        budget = Budget(256 << 10)
        sizes: list[int] = []
        most = 0

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            nonlocal most
            sizes.append(len(frame))
            most = max(most, budget.used_bytes)
            reply.answer([b"ok"])

        peers = [Peer(begin, budget=budget) for _ in range(10)]
        for peer in peers:
            await peer.send(framed(bytes(1 << 20))[: 100 << 10])
        await turns()
        assert budget.is_exceeded and not sizes
        rest = framed(bytes(1 << 20))[100 << 10 :]
        await asyncio.gather(*(peer.send(rest) for peer in peers))
        for peer in peers:
            assert await peer.receive(2) == b"ok"
        assert sizes == [1 << 20] * 10
        assert most <= (256 << 10) + (1 << 20) + SCRATCH_BYTES
        assert budget.used_bytes == 0
        for peer in peers:
            peer.close()

    run(main)


def test_response_counts_in_the_memory_budget_until_the_client_has_read_it() -> None:
    async def main() -> None:
        budget = Budget(8 << 20)
        peer = Peer(lambda _, reply: reply.answer([bytes(3 << 20), bytes(1)]), budget=budget)
        await peer.send(framed(b"x"))
        await turns()
        assert budget.used_bytes == (3 << 20) + 1
        assert len(await peer.receive(2 << 20)) == 2 << 20
        await turns()
        assert budget.used_bytes == (3 << 20) + 1, "a part counts until all of it is sent"
        await peer.receive((1 << 20) + 1)
        await turns()
        assert budget.used_bytes == 0
        await peer.send(framed(b"x"))
        await turns()
        peer.close()
        assert budget.used_bytes == 0

    run(main)


def test_broker_starts_no_request_of_a_client_with_unread_responses() -> None:
    async def main() -> None:
        begun = 0

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            nonlocal begun
            begun += 1
            reply.answer([bytes(1 << 17)])

        peer = Peer(begin, requests_max=64)
        await peer.send(framed(b"x") * 64)
        await turns()
        assert begun < 32
        assert len(await peer.receive(64 << 17)) == 64 << 17
        assert begun == 64
        peer.close()

    run(main)


def test_large_response_is_built_only_after_the_client_has_read_earlier_responses() -> None:
    async def main() -> None:
        budget = Budget(64 << 20)
        built: list[memoryview] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            def start() -> None:
                built.append(frame)
                reply.answer([bytes(frame) * (1 << 20)])

            reply.build(1 << 20, start)

        peer = Peer(begin, budget=budget, requests_max=64)
        await peer.send(b"".join(framed(bytes([n])) for n in range(20)))
        await turns()
        assert len(built) == 1
        for n in range(20):
            assert await peer.receive(1 << 20) == bytes([n]) * (1 << 20)
        assert built == [bytes([n]) for n in range(20)]
        await turns()
        assert budget.used_bytes == 0
        peer.close()

    run(main)


def test_large_response_is_not_built_while_the_client_has_not_read_the_previous_response() -> None:
    """Two requests arrive, and call ``ResponseSlot.build``, before the first response is built."""

    async def main() -> None:
        built: list[ResponseSlot] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            reply.build(2 << 20, lambda: built.append(reply))

        peer = Peer(begin, budget=Budget(64 << 20))
        await peer.send(framed(b"1") + framed(b"2"))
        await turns()
        assert len(built) == 1
        built[0].answer([bytes(2 << 20)])
        await turns()
        assert len(built) == 1
        assert len(await peer.receive(2 << 20)) == 2 << 20
        await peer.until(lambda: len(built) == 2)
        built[1].answer([b"2"])
        assert await peer.receive(1) == b"2"
        peer.close()

    run(main)


def test_closed_connection_releases_the_memory_reserved_for_its_response() -> None:
    async def main() -> None:
        budget = Budget(8 << 20)
        built: list[ResponseSlot] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            reply.build(2 << 20, lambda: built.append(reply))

        peers = [Peer(begin, budget=budget) for _ in range(6)]
        for peer in peers:
            await peer.send(framed(b"x"))
        await turns()
        assert len(built) == 2 and budget.is_waited_for
        peers[5].close()  # The peer closes before its response is built.
        peers[0].close()  # The peer closes during the build, which still uses memory.
        await turns()
        assert len(built) == 2
        built[0].answer([bytes(2 << 20)])
        await turns()
        assert len(built) == 3
        built[1].answer([b"smaller"])
        assert await peers[1].receive(7) == b"smaller"
        await turns()
        assert len(built) == 4
        for reply in built[2:]:
            reply.answer([b"ok"])
        await peers[4].until(lambda: len(built) == 5)
        built[4].answer([b"ok"])
        for peer in peers[2:5]:
            assert await peer.receive(2) == b"ok"
        await turns()
        assert budget.used_bytes == 0 and not budget.is_waited_for
        for peer in peers:
            peer.close()

    run(main)


def test_small_responses_are_built_while_a_large_response_waits_for_memory() -> None:
    async def main() -> None:
        budget = Budget(32 << 20)
        built: list[tuple[int, ResponseSlot]] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            size = frame[0] << 20
            reply.build(size, lambda: built.append((frame[0], reply)))

        peers = [Peer(begin, budget=budget) for _ in range(3)]
        for peer, mib in zip(peers, (8, 7, 2)):
            await peer.send(framed(bytes([mib])))
            await turns()
        # Unread responses may use 12 MiB. The response of 7 MiB would exceed that, so it waits.
        assert [mib for mib, _ in built] == [8, 2] and budget.is_waited_for
        peers[0].close()
        built[0][1].answer([b"late"])
        await turns()
        assert [mib for mib, _ in built] == [8, 2, 7]
        for _, reply in built[1:]:
            reply.answer([b"x"])
        for peer in peers[1:]:
            assert await peer.receive(1) == b"x"
            peer.close()
        assert budget.used_bytes == 0

    run(main)


def test_response_may_reserve_more_memory_while_it_is_built() -> None:
    async def main() -> None:
        budget = Budget(32 << 20)
        sizes: list[int] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            def large() -> None:
                sizes.append(14)
                reply.answer([b"x"])

            def small() -> None:
                sizes.append(4)
                reply.build(14 << 20, large)

            reply.build(4 << 20, small)

        peer = Peer(begin, budget=budget)
        await peer.send(framed(b"x"))
        assert await peer.receive(1) == b"x"
        assert sizes == [4, 14] and budget.used_bytes == 0 and budget.may_build(peer, 16 << 20)
        peer.close()

    run(main)


def test_request_handler_can_delay_the_next_request_on_the_connection() -> None:
    async def main() -> None:
        replies: list[ResponseSlot] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            replies.append(reply)
            if frame == b"first":
                reply.hold()
            else:
                reply.answer([b"2"])

        peer = Peer(begin)
        await peer.send(framed(b"first") + framed(b"second"))
        await turns()
        assert len(replies) == 1
        replies[0].go_on()
        await peer.until(lambda: len(replies) == 2)
        replies[0].answer([b"1"])
        assert await peer.receive(2) == b"12"
        peer.close()

    run(main)


def test_throttled_client_gets_its_response_but_its_next_request_waits() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began: list[float] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            began.append(loop.time())
            reply.throttle(200 if len(began) == 1 else 0)
            reply.throttle(50)
            reply.answer([b"x"])

        peer = Peer(begin)
        await peer.send(framed(b"first"))
        assert await peer.receive(1) == b"x"
        await peer.send(framed(b"second"))
        await turns()
        assert len(began) == 1
        assert await peer.receive(1) == b"x"
        assert began[1] - began[0] >= 0.2
        await peer.send(framed(b"third"))
        peer.connection.close("closed while it waits", quiet=True)
        await turns()
        assert len(began) == 2
        peer.close()

    run(main)


def test_broker_receives_the_rest_of_a_partial_request_of_a_throttled_client() -> None:
    async def main() -> None:
        began: list[int] = []

        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            began.append(len(frame))
            reply.throttle(3_600_000)
            reply.answer([b"x"])

        budget = Budget(1 << 30)
        peer = Peer(begin, budget=budget)
        second = framed(bytes(300_000))
        await peer.send(framed(b"first") + second[:10_000])
        assert await peer.receive(1) == b"x"
        await turns()
        assert peer.connection.frame_began_ms, "the time-out of the partial request runs"
        await peer.send(second[10_000:200_000])
        await turns()
        assert peer.connection.frame_began_ms
        await peer.send(second[200_000:] + framed(b"third")[:6])
        await peer.until(lambda: peer.connection.frame_began_ms == 0)
        await peer.send(framed(b"third")[6:])
        await turns()
        assert len(began) == 1, "the next request starts only after the throttle time"
        peer.close()
        assert budget.used_bytes == 0

    run(main)


def test_closed_connection_releases_the_memory_of_its_requests() -> None:
    async def main() -> None:
        budget = Budget(10_000)
        replies: list[ResponseSlot] = []
        peer = Peer(lambda _, reply: replies.append(reply), budget=budget, requests_max=1)
        await peer.send(framed(bytes(100)) * 3 + framed(bytes(200_000))[:150_000])
        await peer.until(lambda: replies)
        peer.close()
        # The first request is in flight, so its bytes count until its response.
        assert budget.used_bytes == 100
        assert not replies[0].is_open
        replies[0].answer([b"nobody reads this"])
        assert budget.used_bytes == 0

    run(main)


def test_frame_with_an_invalid_length_closes_the_connection() -> None:
    async def main() -> None:
        for prefix in (b"\xff\xff\xff\xff", struct.pack(">i", (1 << 20) + 1), b"GET / HTTP/1.1"):
            peer = Peer(lambda _, reply: reply.answer([b"?"]))
            await peer.send(prefix)
            assert await peer.receive(1) == b""
            assert len(peer.ended) == 1
            peer.close()

    run(main)


def test_refused_request_closes_only_its_own_connection() -> None:
    async def main() -> None:
        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            if frame == b"bad":
                raise ProtocolError("not a request")
            reply.answer([b"fine"])

        bad, good = Peer(begin), Peer(begin)
        await bad.send(framed(b"bad"))
        await good.send(framed(b"good"))
        assert await bad.receive(1) == b""
        assert bad.ended == ["not a request"]
        assert await good.receive(4) == b"fine"
        bad.close()
        good.close()

    run(main)


def test_logged_close_reason_mentions_a_partially_received_request() -> None:
    async def main() -> None:
        peer = Peer(lambda _, reply: None)
        await peer.send(framed(b"abc")[:5])
        await peer.until(lambda: peer.connection.frame_began_ms)
        peer.socket.close()
        await peer.until(lambda: peer.ended)
        assert "middle of a request" in peer.ended[0]

    run(main)


def test_timeout_of_a_partial_request_excludes_times_when_the_broker_does_not_read() -> None:
    """While the broker does not read, the client cannot send the rest of its request."""

    async def main() -> None:
        replies: list[ResponseSlot] = []
        peer = Peer(lambda _, reply: replies.append(reply), requests_max=1)
        await peer.send(framed(b"first") + framed(b"second")[:6])
        await peer.until(lambda: replies)
        assert peer.connection.frame_began_ms == 0
        replies[0].answer([b"ok"])
        assert await peer.receive(2) == b"ok"
        await peer.until(lambda: peer.connection.frame_began_ms)
        await peer.send(framed(b"second")[6:])
        await peer.until(lambda: len(replies) == 2)
        peer.close()

    run(main)


def test_connection_is_closed_if_a_file_of_a_response_is_shorter_than_expected() -> None:
    async def main() -> None:
        with tempfile.TemporaryFile() as file:
            peer = Peer(lambda _, reply: reply.answer([FileRange(file, 0, 10)]))
            await peer.send(framed(b"x"))
            assert await peer.receive(10) == b""
            assert "ended before the end of the requested range" in peer.ended[0]
            peer.close()

    run(main)
