"""Claims of groups: which broker writes a group's offsets. Loop thread.

A broker claims a group by compare-and-set of /consumers/<group>/coordinator; each of its writes for
the group checks the version that its claim, or its last generation, gave that znode. Whoever claims
it afterwards therefore ends every write of the former one, also those that are on their way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Check, Create, MetadataStore, Operation, Set

ATTEMPTS_MAX = 20


@dataclass(slots=True, eq=False)
class Claim:
    """``version`` is the znode's; ``held`` until a write of ours finds another."""

    group: str
    kind: str
    value: znodes.Coordinator
    version: int
    held: bool = True


async def make_claim(
    store: MetadataStore,
    group: str,
    *,
    broker_id: int,
    broker_epoch: int,
    now_ms: Callable[[], int],
) -> Claim:
    """Take the group over, wherever it was; make it, of kind "kafka", if there is none.

    Its members, if it had any, are not known to the new coordinator: it counts as empty from now
    on. Raises InvalidGroupIdError, CoordinationUnavailableError, WriteConflictError.
    """
    path, mine = znodes.group_path(group), znodes.coordinator_path(group)
    for _ in range(ATTEMPTS_MAX):
        znode, present = await store.get(path), await store.get(mine)
        kind, operations = znodes.KIND_KAFKA, list[Operation]()
        if znode is None:
            operations.append(Create(path, znodes.encode_group(kind)))
        else:
            kind = znodes.decode_group(path, znode.data)
            operations.append(Check(path, znode.version))
        version, epoch, generation, empty_ms = -1, 0, 0, None
        if present is not None:
            before = znodes.decode_coordinator(mine, present.data)
            version, epoch, generation = present.version, before.epoch, before.generation
            empty_ms = before.empty_since_ms
        value = znodes.Coordinator(
            broker_id,
            broker_epoch,
            epoch + 1,
            generation,
            now_ms() if empty_ms is None else empty_ms,
        )
        data = znodes.encode_coordinator(value)
        operations.append(Create(mine, data) if present is None else Set(mine, data, version))
        if znode is None:
            operations.append(Create(znodes.offsets_path(group)))
        if await store.write(operations) is None:
            return Claim(group, kind, value, version + 1)
    raise WriteConflictError(f"group {group!r} is being claimed by others; try again")
