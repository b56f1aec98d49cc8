"""Tests of the socket that hands out segment files, against the client's side and hostile senders.

The broker's side runs on an event loop and its own thread, the client's on another thread."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pytest
from support.patience import until
from support.stored_ranges import opened as opened_range
from support.stored_ranges import write

from broker_lite.client.in_place.disk_parts import DIRECT
from broker_lite.client.in_place.segment_file import SegmentFile
from broker_lite.security.tickets import LIFETIME_MS
from broker_lite.server.clock import Clock
from broker_lite.server.descriptors import Descriptors
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.context import Session
from broker_lite.storage.files import OsFiles
from broker_lite.wire.fetch import StoredRange
from broker_lite.wire.tickets import REFUSED, Redemption, encode, socket_name

NOBODY = 65534
"""The user and group ids of ``nobody``, who owns no file."""
CONTENT = b"0123456789" * 1000
T = TypeVar("T")


class Holder:
    """Stands for the connection on which a client gets tickets to exchange for open files."""

    def __init__(self, user: str = "alice") -> None:
        self.closed = False
        self.session = Session(1, "127.0.0.1:1", principal=f"User:{user}")


class Bench:
    """A broker's socket that hands out open files, on an event loop in another thread, and a
    segment file of the topic ``t``."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.now_ms = 1000
        self.readers = {"User:alice"}
        self.metrics = Metrics()
        self.path = folder / "0.log"
        self.path.write_bytes(CONTENT)
        self.path.chmod(0o600)
        self.file = OsFiles().open(str(self.path))
        self.holder = Holder()
        self.descriptors = self.call(self._make)

    def _make(self) -> Descriptors:
        clock = cast(Clock, self)
        return Descriptors(self.loop, clock=clock, metrics=self.metrics, may_read=self._may_read)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def _may_read(self, session: Session, topic: str) -> bool:
        return session.principal in self.readers and topic == "t"

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the loop's thread."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def stored(self, holder: Holder | None = None) -> StoredRange:
        """Return the segment file's location, with a new ticket to exchange for the open file."""
        status = self.path.stat()
        given = holder or self.holder
        ticket = self.call(lambda: self.descriptors.issue(given, "t", self.file))
        return StoredRange("", status.st_dev, status.st_ino, 0, len(CONTENT), ticket)

    @property
    def address(self) -> bytes:
        return socket_name(self.descriptors.socket_id)

    def outcomes(self) -> tuple[float, float]:
        """Return how many tickets the broker exchanged for descriptors, and how many it refused."""
        value = self.metrics.value
        return value("local_reads", "descriptor"), value("local_reads", "refused")

    def close(self) -> None:
        self.call(self.descriptors.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(20)
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def opened(stored: StoredRange, *, direct: bool = False) -> SegmentFile:
    return SegmentFile(stored, may_pass_cache=direct)


def content(stored: StoredRange) -> bytes:
    file = opened(stored)
    try:
        return os.pread(file.fd, len(CONTENT), 0)
    finally:
        file.close()


def refused(stored: StoredRange) -> bool:
    with pytest.raises(OSError) as error:
        opened(stored)
    return isinstance(error.value, PermissionError)


def test_broker_sends_a_read_only_file_descriptor_and_refuses_a_repeated_request(
    bench: Bench,
) -> None:
    stored = bench.stored()
    file = opened(stored)
    assert os.pread(file.fd, 20_000, 0) == CONTENT
    assert not os.get_inheritable(file.fd)
    with pytest.raises(OSError) as error:
        os.pwrite(file.fd, b"x", 0)
    assert error.value.errno == errno.EBADF
    file.close()
    file.close()
    assert refused(stored)
    assert bench.outcomes() == (1, 1)


def test_broker_does_not_pass_a_log_file_to_a_client_whose_ticket_has_expired(bench: Bench) -> None:
    stored, other = bench.stored(), bench.stored()
    bench.now_ms += LIFETIME_MS
    assert refused(stored)
    asyncio.run_coroutine_threadsafe(bench.descriptors.expire(), bench.loop).result(20)
    assert len(bench.descriptors._tickets) == 0
    assert refused(other)


def test_broker_refuses_a_log_file_to_a_principal_without_read_permission(
    bench: Bench,
) -> None:
    """The broker checks the permission of the principal to which it issued the ticket, not that of
    another reader."""
    stored, other = bench.stored(), bench.stored(Holder("bob"))
    assert refused(other)
    bench.readers = {"User:bob"}
    assert refused(stored)


def test_access_ticket_for_a_log_file_becomes_invalid_when_the_connection_closes(
    bench: Bench,
) -> None:
    """Brokers close the connections of a deleted user, so the user's tickets become invalid."""
    stored = bench.stored()
    bench.holder.closed = True
    assert refused(stored)


@pytest.mark.parametrize("is_swept", [False, True])
def test_access_ticket_for_a_log_file_becomes_invalid_when_the_login_expires(
    bench: Bench, is_swept: bool
) -> None:
    """``Logins.sweep`` sets ``needs_login`` up to a second after the end of the login."""
    session, stored = bench.holder.session, bench.stored()
    session.ends_ms = bench.now_ms + 1
    assert content(bench.stored()) == CONTENT
    session.ends_ms, session.needs_login = 0 if is_swept else bench.now_ms, is_swept
    assert refused(stored)


def test_client_can_still_open_a_log_file_that_was_deleted_or_replaced(
    bench: Bench,
) -> None:
    stored = bench.stored()
    bench.path.unlink()
    bench.path.write_bytes(b"another segment of this name")
    assert content(stored) == CONTENT


def test_reader_closes_a_received_descriptor_that_is_not_of_the_named_file(bench: Bench) -> None:
    before = descriptors_of(bench.path)
    for change in ({"inode": 1}, {"device": 1}):
        with pytest.raises(FileNotFoundError):
            opened(bench.stored()._replace(**change), direct=True)
    until(lambda: descriptors_of(bench.path) == before)


def descriptors_of(path: Path) -> int:
    """Return the number of descriptors with which this process holds the file open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # Another thread closed it meanwhile.
            count += os.readlink(f"/proc/self/fd/{name}") == str(path)
    return count


def test_client_that_requests_direct_io_also_receives_an_o_direct_descriptor(bench: Bench) -> None:
    file = opened(bench.stored(), direct=True)
    try:
        try:
            with_path = os.open(bench.path, os.O_RDONLY | DIRECT)
        except OSError:
            with pytest.raises(OSError):
                file.open_direct()
            return
        os.close(with_path)
        direct = file.open_direct()
        flags = [struct.unpack("i", _flags(fd))[0] & DIRECT for fd in (file.fd, direct)]
        assert flags == [0, DIRECT]
        os.close(direct)
    finally:
        file.close()
    without = opened(bench.stored())
    with pytest.raises(OSError):
        without.open_direct()
    without.close()


def _flags(fd: int) -> bytes:
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines():
        if line.startswith("flags:"):
            return struct.pack("i", int(line.split()[1], 8))
    raise AssertionError(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="this process is not root")
def test_broker_passes_no_file_descriptor_to_root_if_it_runs_as_another_user(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a container could not open the file, but could reopen the descriptor for writing."""
    stored = bench.stored()
    with monkeypatch.context() as broker:
        broker.setattr(os, "geteuid", lambda: 1000)
        assert refused(stored)
    assert content(stored) == CONTENT, "the ticket is not used up"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("broker_user", [0, 1000])
def test_client_without_file_permission_receives_an_open_file_from_the_broker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, broker_user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: broker_user)
    bench.path.parent.chmod(0o700)
    stored = bench.stored()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with contextlib.suppress(PermissionError):
                bench.path.read_bytes()
                os._exit(2)
            file = opened(stored)
            with contextlib.suppress(PermissionError):
                # The descriptor opens the file for reading only, by its entry in /proc too.
                os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR)
                os._exit(3)
            status = 0 if os.pread(file.fd, 20_000, 0) == CONTENT else 4
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_forked_child_and_parent_read_an_open_file_independently(bench: Bench) -> None:
    """Both processes share the file position of the descriptor, so reads must not depend on it."""
    file = opened(bench.stored())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.pread(file.fd, 10, 20) == CONTENT[20:30]:
                file.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(file.fd, 20_000, 0) == CONTENT
    file.close()


@pytest.mark.parametrize("reads_once", [False, True])
def test_read_of_an_open_file_that_was_truncated_returns_fewer_bytes(
    bench: Bench, tmp_path: Path, reads_once: bool
) -> None:
    """The reader then fetches the missing records from the broker."""
    stored = write(tmp_path / "1.log", [bytes([65 + n]) * 3000 for n in range(5)])
    bench.file = OsFiles().open(stored.path)
    ticket = bench.stored().ticket
    found = opened_range(stored._replace(path="", ticket=ticket), reads_once=reads_once)
    os.truncate(stored.path, stored.length // 2)
    walked = found.read()
    assert 0 < len(walked.batches) < 5 and walked.damage is None
    assert not found.read().batches
    assert not found.is_read
    found.close()


def test_request_for_a_file_descriptor_fails_at_once_if_the_broker_has_stopped(
    bench: Bench,
) -> None:
    stored = bench.stored()
    bench.call(bench.descriptors.close)
    until(lambda: all(thread.name != "descriptors" for thread in threading.enumerate()))
    with pytest.raises(ConnectionRefusedError):
        opened(stored)
    bench.descriptors = bench.call(bench._make)


def test_broker_without_free_file_descriptors_refuses_at_once_to_open_a_segment_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> list[int]:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("broker_lite.server.descriptors._opened", exhausted)
    assert refused(bench.stored())


# The next tests send other datagrams than a reader does.


class Sender(NamedTuple):
    """A hostile process of this machine."""

    sock: socket.socket

    def send(self, content: bytes, *ancillary: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            self.sock.sendmsg([content], list(ancillary), socket.MSG_DONTWAIT)


@contextlib.contextmanager
def sender(bench: Bench, name: str | None = "") -> Iterator[Sender]:
    """Connect a socket, bound to ``name`` (None: to no address), to the broker's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect(bench.address)
        if name is not None:
            sock.bind(name)
        yield Sender(sock)


def test_broker_answers_only_valid_datagrams_from_abstract_unix_socket_addresses(
    bench: Bench, tmp_path: Path
) -> None:
    ticket = bench.stored().ticket
    assert ticket is not None
    valid = encode(Redemption(ticket.secret, False))
    with sender(bench) as nameless, sender(bench, str(tmp_path / "s")) as by_path:
        for octets in (b"", b"x", valid[:-1], valid + b"\0", bytes(70_000)):
            nameless.send(octets)
        by_path.send(valid)
        with sender(bench, None) as without_address:
            without_address.send(valid)
        # The broker handles datagrams in turn: after this answer it has seen the others.
        nameless.sock.settimeout(20)
        assert content(bench.stored()) == CONTENT
        for each in (nameless, by_path):
            each.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.sock.recv(10)
    assert bench.outcomes() == (1, 0), "the ticket is not used up"


def test_guessed_access_ticket_does_not_open_a_log_file(bench: Bench) -> None:
    stored = bench.stored()
    with sender(bench) as guesser:
        for number in range(5):
            guesser.sock.send(encode(Redemption(number.to_bytes(16, "big"), True)))
            octets, ancillary, _, _ = guesser.sock.recvmsg(10, 100)
            assert (octets, ancillary) == (REFUSED, [])
    assert content(stored) == CONTENT


def test_client_that_never_reads_its_descriptors_does_not_delay_other_clients(bench: Bench) -> None:
    with sender(bench) as deaf:
        for _ in range(100):
            deaf.send(encode(Redemption(bytes(16), False)))
            assert content(bench.stored()) == CONTENT


def test_file_descriptors_that_a_hostile_sender_attaches_do_not_block_the_event_loop(
    bench: Bench,
) -> None:
    """The kernel closes attached descriptors on the broker's receiving thread. If one is a TCP
    socket with SO_LINGER and unsent bytes, its close blocks this thread.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as lingering,
        sender(bench) as hostile,
    ):
        accepted, _ = server.accept()
        linger = struct.pack("ii", 1, 2)
        lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        lingering.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                lingering.send(bytes(1 << 16))
        rights = array.array("i", [lingering.fileno()] * 3)
        with contextlib.suppress(PermissionError):  # Linux 6.16 refuses the datagram.
            hostile.send(bytes(17), (socket.SOL_SOCKET, socket.SCM_RIGHTS, rights))
        lingering.close()
        assert bench.call(lambda: True)
        accepted.close()
    # The reader waits for a second; on Linux before 6.16 the broker's thread may take longer.
    with contextlib.suppress(TimeoutError):
        assert content(bench.stored()) == CONTENT
