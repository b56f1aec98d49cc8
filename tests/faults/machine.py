"""Inject faults of a machine: power cuts, full disks, cut networks, failing system calls.

A function ``why_no_…`` returns why a fault that needs a privilege is not available. Mounts are in a
mount namespace of the test's thread, and networks are in namespaces of child processes. The kernel
therefore removes them with the last process, even if a test is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from broker_lite.local.guard import Guard

EXT4_IOC_SHUTDOWN = 0x8004587D
DROP_EVERYTHING, KEEP_JOURNAL = 2, 1
"""Modes of a power cut: lose all unsynced data, or only data outside the journal."""

CLONE_FS, CLONE_NEWNS, CLONE_NEWNET = 0x00000200, 0x00020000, 0x40000000
SYNC_FILE_RANGE_ALL = 7
PAGE = 4096
WAIT_S = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


def run(*command: object) -> str:
    """Run a command and return its output. If the command fails, raise RuntimeError with its
    stderr."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _reason(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (OSError, RuntimeError, AssertionError) as error:
        return str(error) or type(error).__name__
    return ""


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@contextlib.contextmanager
def _in_namespace(path: str, kind: int) -> Iterator[None]:
    """For the block, move this thread, and the threads and processes that it starts, to the Linux
    namespace at ``path``."""
    own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/{Path(path).name}", os.O_RDONLY)
    try:
        target = os.open(path, os.O_RDONLY)
        try:
            _call("setns", target, kind)
        finally:
            os.close(target)
        try:
            yield
        finally:
            _call("setns", own, kind)
    finally:
        os.close(own)


@contextlib.contextmanager
def private_mounts() -> Iterator[None]:
    """Give this thread a mount namespace, which ends with the thread and its children."""
    own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/mnt", os.O_RDONLY)
    folder = Path.cwd()
    try:
        _call("unshare", CLONE_NEWNS)
        try:
            run("mount", "--make-rprivate", "/")
            yield
        finally:
            # Threads that started meanwhile share this thread's working folder. The kernel lets the
            # thread return to its namespace only if it shares the folder with no thread.
            _call("unshare", CLONE_FS)
            _call("setns", own, CLONE_NEWNS)
            os.chdir(folder)
    finally:
        os.close(own)


class LoopDisk:
    """An ext4 file system in a file. A test can cut its power."""

    def __init__(self, image: Path, place: Path, megabytes: int = 128) -> None:
        self.place = place
        self._image = image
        self._ballast = place / "ballast"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", image)
        place.mkdir(parents=True, exist_ok=True)
        self.mount()

    def mount(self) -> None:
        """Mount the file system, as after a restart of the machine."""
        run("mount", "-o", "loop", self._image, self.place)

    def unmount(self) -> None:
        run("umount", self.place)

    def fill(self) -> None:
        """Fill the file system."""
        # ext4 can use freed blocks only after the journal's next commit. Without the sync, the
        # space of a file that was deleted shortly before would become free after the fill.
        run("sync", "--file-system", self.place)
        with self._ballast.open("ab") as file:
            step = 8 << 20
            while step >= PAGE:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError:
                    step //= 2

    def free(self) -> None:
        """Free the space that ``fill`` used."""
        self._ballast.unlink()

    def cut(self, random: Random) -> None:
        """Cut the power: lose all unsynced data or, at random, only unsynced data outside the ext4
        journal."""
        flag = random.choice((DROP_EVERYTHING, KEEP_JOURNAL))
        if random.random() < 0.5:
            self._write_some_pages(random)
        folder = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", flag))
        finally:
            os.close(folder)

    def _write_some_pages(self, random: Random) -> None:
        for path in sorted(self.place.rglob("*.log")):
            pages = path.stat().st_size // PAGE + 1
            file = os.open(path, os.O_RDONLY)
            try:
                for _ in range(min(pages, 4)):
                    at = ctypes.c_long(PAGE * max(0, pages - random.randint(1, 8)))
                    _libc.sync_file_range(file, at, ctypes.c_long(PAGE), SYNC_FILE_RANGE_ALL)
            finally:
                os.close(file)


@functools.cache
def why_no_disks() -> str:
    """Return why this process cannot mount file systems; an empty text if it can."""

    def attempt() -> None:
        folder = Path(tempfile.mkdtemp())
        try:
            with private_mounts():
                disk = LoopDisk(folder / "image", folder / "disk", 16)
                try:
                    disk.cut(Random(0))
                finally:
                    disk.unmount()
        finally:
            shutil.rmtree(folder)

    return _reason(attempt)


class Network:
    """Hosts in their own network namespaces on one bridge, whose links can be cut.

    Host 0 is the hub, on which clients and ZooKeeper run. ``coordination`` is ZooKeeper's own
    address, so that a broker can lose ZooKeeper but keep its clients.
    """

    coordination = "10.77.0.100"

    def __init__(self, guard: Guard, hosts: int, log: Path) -> None:
        self._holders = [
            guard.spawn(["unshare", "--net", "sleep", "infinity"], log) for _ in range(hosts + 1)
        ]
        own = os.readlink("/proc/self/ns/net")
        for holder in self._holders:
            deadline = time.monotonic() + WAIT_S
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                if holder.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"unshare --net: {log.read_text().strip()}")
                time.sleep(0.005)
        self.on(0, "ip", "link", "add", "bridge", "type", "bridge")
        for host in range(hosts + 1):
            self.on(host, "ip", "link", "set", "lo", "up")
        for address in (self.address(0), self.coordination):
            self.on(0, "ip", "address", "add", f"{address}/24", "dev", "bridge")
        self.on(0, "ip", "link", "set", "bridge", "up")
        for host in range(1, hosts + 1):
            pid = self._holders[host].pid
            pair = ("type", "veth", "peer", "name", "wire", "netns", pid)
            self.on(0, "ip", "link", "add", f"port{host}", *pair)
            self.on(0, "ip", "link", "set", f"port{host}", "master", "bridge", "up")
            self.on(host, "ip", "address", "add", f"{self.address(host)}/24", "dev", "wire")
            self.on(host, "ip", "link", "set", "wire", "up")

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def inside(self, host: int) -> contextlib.AbstractContextManager[None]:
        """For the block, move this thread, and the threads and processes that it starts, to a
        host's network namespace."""
        return _in_namespace(f"/proc/{self._holders[host].pid}/ns/net", CLONE_NEWNET)

    def on(self, host: int, *command: object) -> str:
        """Run a command on a host."""
        return run("nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", *command)

    def isolate(self, host: int) -> None:
        """Cut all links of a host."""
        self.on(0, "ip", "link", "set", f"port{host}", "down")

    def join(self, host: int) -> None:
        """Restore the links that ``isolate`` has cut at a host."""
        self.on(0, "ip", "link", "set", f"port{host}", "up")

    def silence(self, host: int, address: str) -> None:
        """Drop the packets that a host sends to an address; packets in the other direction still
        arrive."""
        wrong = ("lladdr", "02:00:00:00:00:99", "dev", "wire", "nud", "permanent")
        self.on(host, "ip", "neighbour", "replace", address, *wrong)

    def hear(self, host: int, address: str) -> None:
        """End ``silence``: packets from the host to the address arrive again."""
        self.on(host, "ip", "neighbour", "delete", address, "dev", "wire")

    def cut(self, one: int, other: int) -> None:
        """Cut the link between two hosts; both still reach the other hosts."""
        self.silence(one, self.address(other))
        self.silence(other, self.address(one))

    def mend(self, one: int, other: int) -> None:
        """Restore the link that ``cut`` has cut."""
        self.hear(one, self.address(other))
        self.hear(other, self.address(one))


@functools.cache
def why_no_networks() -> str:
    """Return why this process cannot create networks; an empty text if it can."""

    def attempt() -> None:
        folder = Path(tempfile.mkdtemp())
        guard = Guard()
        try:
            network = Network(guard, 2, folder / "log")
            with network.inside(1):
                run("true")
            network.cut(1, 2)
            network.mend(1, 2)
        finally:
            guard.close()
            shutil.rmtree(folder)

    return _reason(attempt)


@contextlib.contextmanager
def failing(pid: int, call: str, how: str, log: Path) -> Iterator[None]:
    """Make the system call ``call`` of a process fail while the block runs.

    ``how`` is an argument of strace's ``inject``, for example error=EIO.
    """
    command = ["strace", "-f", "-p", str(pid), "-e", f"trace={call}", "-e", f"inject={call}:{how}"]
    with log.open("ab") as output:
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output)
    try:
        deadline = time.monotonic() + WAIT_S
        while not re.search(rf"Process {pid} attached", log.read_text()):
            if tracer.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"strace: {log.read_text().strip()}")
            time.sleep(0.01)
        yield
    finally:
        # When strace ends, the process continues without the fault.
        tracer.terminate()
        tracer.wait()


@functools.cache
def why_no_strace() -> str:
    """Return why strace cannot run here; an empty text if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"

    def attempt() -> None:
        folder = Path(tempfile.mkdtemp())
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            with failing(sleeper.pid, "fdatasync", "error=EIO", folder / "log"):
                pass
        finally:
            sleeper.kill()
            sleeper.wait()
            shutil.rmtree(folder)

    return _reason(attempt)
