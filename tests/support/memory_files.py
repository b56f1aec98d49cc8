"""A file system in memory that loses unsynced data in a crash.

- ``crash`` simulates a power cut. Each unsynced page (4 KiB) is kept, lost, or torn at a multiple
  of 512 bytes. Each unsynced file size, create, rename and unlink is kept or lost independently.
- ``kill`` ends only the process, and keeps the page cache.
- A failed ``datasync`` marks pages clean without writing them, as Linux does.
- ``fail_next``, ``capacity_bytes`` and ``stop_at`` inject faults.

``MemFiles`` is for one thread. All randomness comes from the caller's Random.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random

from broker_lite.storage.files import Buffer, Lock

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class PowerCut(Exception):
    """Raised by operation number ``stop_at`` and by all later operations, until
    ``crash`` or ``kill`` is called."""


class _Inode:
    """The bytes of a file in the page cache, and the disk's version of each unsynced page."""

    __slots__ = ("data", "durable_bytes", "lost", "modified_ms", "undo")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable_bytes = 0
        self.undo: dict[int, bytes] = {}
        self.lost: dict[int, bytes] = {}
        self.modified_ms = 0

    def touch(self, start: int, end: int) -> None:
        """Save the disk's version of the pages in which bytes [start, end) will change."""
        for page in range(start // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES):
            if page not in self.undo:
                at = page * PAGE_BYTES
                self.undo[page] = self.lost.pop(page, bytes(self.data[at : at + PAGE_BYTES]))

    def synced(self) -> None:
        self.undo.clear()
        self.durable_bytes = len(self.data)

    def sync_failed(self) -> None:
        self.lost.update(self.undo)
        self.undo.clear()

    def forget_cached(self, position: int) -> None:
        """Evict the pages from ``position`` on that a failed sync marked clean without writing
        them: reads then return the disk's version."""
        for page in [p for p in self.lost if (p + 1) * PAGE_BYTES > position]:
            self._put(page, self.lost.pop(page))

    def _put(self, page: int, content: bytes) -> None:
        at = page * PAGE_BYTES
        end = min(at + PAGE_BYTES, len(self.data))
        if at < end:
            self.data[at:end] = content[: end - at].ljust(end - at, b"\x00")

    def crash(self, random: Random) -> None:
        old, new = self.durable_bytes, len(self.data)
        size = random.choice((old, new, random.randint(min(old, new), max(old, new))))
        if len(self.data) < size:
            self.data.extend(bytes(size - len(self.data)))
        del self.data[size:]
        for page, content in sorted(self.undo.items()):
            fate = random.randrange(3)
            if fate == 0:
                self._put(page, content)
            elif fate == 1:
                self._tear(page, content, random)
        for page, content in self.lost.items():
            self._put(page, content)
        self.lost.clear()
        self.synced()

    def _tear(self, page: int, content: bytes, random: Random) -> None:
        at = page * PAGE_BYTES
        mixed = bytearray(self.data[at : at + PAGE_BYTES].ljust(PAGE_BYTES, b"\x00"))
        old = content.ljust(PAGE_BYTES, b"\x00")
        for sector in range(0, PAGE_BYTES, SECTOR_BYTES):
            if random.random() < 0.5:
                mixed[sector : sector + SECTOR_BYTES] = old[sector : sector + SECTOR_BYTES]
        self._put(page, bytes(mixed))


class _Dir:
    """A directory: its names in the page cache, its names on disk, and the unsynced changes."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Dir] = {}
        self.durable: dict[str, _Inode | _Dir] = {}
        self.pending: list[tuple[str, str, _Inode | _Dir]] = []
        """Unsynced changes: removed name or "", added name or "", and the file or directory."""

    def change(self, removed: str, added: str, node: _Inode | _Dir) -> None:
        _apply(self.names, removed, added, node)
        self.pending.append((removed, added, node))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def crash(self, random: Random) -> None:
        for change in self.pending:
            if random.random() < 0.5:
                _apply(self.durable, *change)
        self.names = dict(self.durable)
        self.pending.clear()
        for _, node in sorted(self.names.items()):
            node.crash(random)


def _apply(names: dict[str, _Inode | _Dir], removed: str, added: str, node: _Inode | _Dir) -> None:
    if removed:
        names.pop(removed, None)
    if added:
        names[added] = node


class MemFile:
    """An open file of a MemFiles. It is unusable after ``crash`` or ``kill``."""

    __slots__ = ("_files", "_generation", "_inode", "_writable", "path", "size")

    def __init__(self, files: MemFiles, inode: _Inode, path: str, writable: bool) -> None:
        self._files = files
        self._inode = inode
        self._generation = files.generation
        self._writable = writable
        self.path = path
        self.size = len(inode.data)

    def _alive(self) -> None:
        if self._generation != self._files.generation:
            raise OSError(errno.EIO, "opened before the crash", self.path)

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a file in memory has no descriptor", self.path)

    def append(self, buffers: Sequence[Buffer], *, keep: bool = True) -> int:
        self._alive()
        if not self._writable:
            raise OSError(errno.EBADF, "not opened for writing", self.path)
        data = b"".join(buffers)
        space_left, error = self._files.before_write(self.path, len(data))
        inode, start = self._inode, self.size
        part = data if error is None else data[:space_left]
        inode.touch(start, start + len(part))
        inode.data[start : start + len(part)] = part
        inode.modified_ms = self._files.now_ms()
        if error is not None:
            raise error
        self.size = start + len(data)
        return start

    def pread(self, position: int, length: int) -> bytes:
        self._alive()
        return bytes(self._inode.data[position : position + length])

    def truncate(self, size: int) -> None:
        self._alive()
        self._files.before("truncate", self.path)
        data = self._inode.data
        self._inode.touch(min(size, len(data)), max(size, len(data)))
        data.extend(bytes(max(0, size - len(data))))
        del data[size:]
        self.size = size

    def datasync(self) -> None:
        self._alive()
        try:
            self._files.before("datasync", self.path)
        except OSError:
            self._inode.sync_failed()
            raise
        self._inode.synced()

    def start_sync(self, position: int) -> None:
        self._alive()

    def forget_cached(self, position: int) -> None:
        self._alive()
        self._inode.forget_cached(position)


class _MemLock:
    __slots__ = ("_files", "_path")

    def __init__(self, files: MemFiles, path: str) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locked.discard(self._path)


class MemFiles:
    """The file system in memory that the module describes.

    ``operations`` counts the operations that change the file system.
    """

    def __init__(
        self, *, now_ms: Callable[[], int] = lambda: 0, capacity_bytes: int | None = None
    ) -> None:
        self.now_ms = now_ms
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.stop_at: int | None = None
        """The number of the operation at which the power is cut; None for no power cut."""
        self.generation = 0
        self.locked: set[str] = set()
        self._root = _Dir()
        self._faults: list[tuple[str, str, int, int]] = []
        self._is_cut = False

    # The methods below inject faults.

    def fail_next(
        self, operation: str, error: int, *, path: str = "", after_bytes: int = 0, times: int = 1
    ) -> None:
        """Make the next ``times`` runs of an operation fail with the errno ``error``.

        Only paths that contain ``path`` are affected. ``operation`` is create, write, truncate,
        datasync, rename, remove, make_dir, remove_dir or sync_dir. A failing write first writes
        ``after_bytes`` of its bytes.
        """
        self._faults.extend([(operation, path, error, after_bytes)] * times)

    def flip(self, path: str, position: int, bit: int) -> None:
        """Flip one bit of a file on the disk."""
        self._file(path).data[position] ^= 1 << bit

    def clear_faults(self) -> None:
        self._faults.clear()

    def before(self, operation: str, path: str) -> None:
        """Count an operation, and raise the fault that was injected for it."""
        fault = self._take_fault(operation, path)
        if fault is not None:
            raise OSError(fault[2], os.strerror(fault[2]), path)

    def before_write(self, path: str, length: int) -> tuple[int, OSError | None]:
        """Return how many bytes of a write succeed, and the error after them if there is one."""
        fault = self._take_fault("write", path)
        if fault is not None:
            return min(fault[3], length), OSError(fault[2], os.strerror(fault[2]), path)
        if self.capacity_bytes is not None:
            space_left = self.capacity_bytes - self._used(self._root)
            if space_left < length:
                return max(space_left, 0), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return length, None

    def _take_fault(self, operation: str, path: str) -> tuple[str, str, int, int] | None:
        if self._is_cut or self.operations == self.stop_at:
            self._is_cut = True
            raise PowerCut(f"{operation} {path}")
        self.operations += 1
        for i, fault in enumerate(self._faults):
            if fault[0] == operation and fault[1] in path:
                return self._faults.pop(i)
        return None

    def crash(self, random: Random) -> None:
        """Cut the power: open files become unusable, and unsynced changes may be lost."""
        self._root.crash(random)
        self.kill()

    def kill(self) -> None:
        """End the process: open files become unusable, but its writes stay in the page cache."""
        self.generation += 1
        self.locked.clear()
        self.stop_at = None
        self._is_cut = False

    @property
    def is_cut(self) -> bool:
        """Return whether the power was cut, at the operation with the number ``stop_at``."""
        return self._is_cut

    def _used(self, node: _Inode | _Dir) -> int:
        if isinstance(node, _Inode):
            return len(node.data)
        return sum(map(self._used, node.names.values()))

    # The methods below implement the interface Files.

    def create(self, path: str) -> MemFile:
        self.before("create", path)
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        inode = _Inode()
        inode.modified_ms = self.now_ms()
        parent.change("", name, inode)
        return MemFile(self, inode, path, True)

    def open(self, path: str, *, writable: bool = False) -> MemFile:
        return MemFile(self, self._file(path), path, writable)

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except OSError:
            return False
        return True

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._directory(path).names)

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def make_dir(self, path: str) -> None:
        self.before("make_dir", path)
        node = self._root
        for name in _parts(path):
            below = node.names.get(name)
            if below is None:
                below = _Dir()
                node.change("", name, below)
            if not isinstance(below, _Dir):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            node = below

    def rename(self, source: str, target: str) -> None:
        self.before("rename", source)
        parent, old = self._parent(source)
        other, new = self._parent(target)
        assert parent is other, "storage renames within one directory"
        parent.change(old, new, self._node(source))

    def remove(self, path: str) -> None:
        self.before("remove", path)
        parent, name = self._parent(path)
        parent.change(name, "", self._file(path))

    def remove_dir(self, path: str) -> None:
        self.before("remove_dir", path)
        parent, name = self._parent(path)
        directory = self._directory(path)
        if directory.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        parent.change(name, "", directory)

    def sync_dir(self, path: str) -> None:
        self.before("sync_dir", path)
        self._directory(path).sync()

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        if not self.exists(path):
            self.create(path)
        self.locked.add(path)
        return _MemLock(self, path)

    def space(self, path: str) -> tuple[int, int]:
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return total, max(0, total - self._used(self._root))

    def _node(self, path: str) -> _Inode | _Dir:
        node: _Inode | _Dir = self._root
        for name in _parts(path):
            if not isinstance(node, _Dir):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            below = node.names.get(name)
            if below is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = below
        return node

    def _file(self, path: str) -> _Inode:
        node = self._node(path)
        if isinstance(node, _Dir):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _directory(self, path: str) -> _Dir:
        node = self._node(path)
        if not isinstance(node, _Dir):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[_Dir, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        return self._directory(above), name


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
