"""ZooKeeper's request multiRead, which kazoo lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.protocol.serialization import (
    EXCEPTIONS,
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat


class MultiRead:
    """Several reads of data and children at one point in time, without watches."""

    type = 22

    def __init__(self, reads: Sequence[Any]) -> None:
        self._reads = reads

    def serialize(self) -> bytes:
        parts = [MultiHeader(r.type, False, -1).serialize() + r.serialize() for r in self._reads]
        return b"".join(parts) + bytes(multiheader_struct.pack(-1, True, -1))

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """Return an answer or an exception for each read."""
        results: list[Any] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == GetData.type:
                content, offset = read_buffer(data, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                results.append((content, stat))
                offset += stat_struct.size
            elif header.type == GetChildren.type:
                (count,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                names = []
                for _ in range(count):
                    name, offset = read_string(data, offset)
                    names.append(name)
                results.append(names)
            else:
                (code,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                results.append(EXCEPTIONS[code]())
            header, offset = MultiHeader.deserialize(data, offset)
        return results
