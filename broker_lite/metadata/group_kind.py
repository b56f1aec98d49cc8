"""Which kind of members a group has, and how it comes by it. Pure.

The first member decides. A native one makes the group as "native"; everything else that makes it
(a commit without a member among it) makes it as "kafka", which binds nobody until the first
generation of Kafka members is written: until then a native member may take the group over, offsets
and all. That write compares the coordinator's znode and leaves it without a claim, so whatever a
broker has on its way, offsets or a first generation, is refused from then on. Called by
``client/native`` and the brokers.
"""

from __future__ import annotations

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set, Znode
from broker_lite.model import NO_BROKER, NO_EPOCH

UNCLAIMED = znodes.Coordinator(NO_BROKER, NO_EPOCH, 0, 0, None)


def is_open(group: str, kind: str, coordinator: Znode | None) -> bool:
    """Whether members of either kind may come still: the group has had none. Raises
    UnsupportedVersionError."""
    return kind == znodes.KIND_KAFKA and not _read(group, coordinator).generation


def made_native(group: str, znode: Znode, coordinator: Znode | None) -> list[Operation]:
    """The write that makes an open group native. Offsets stay as they are. ``znode`` and
    ``coordinator`` are as they were when it was found open; the write is refused where either has
    changed, or the group was deleted and made again."""
    path, mine = znodes.group_path(group), znodes.coordinator_path(group)
    before = _read(group, coordinator)
    # Nobody knows how long its members will stay: brokers look after that (GroupOffsets.age).
    value = before._replace(
        broker_id=NO_BROKER,
        broker_epoch=NO_EPOCH,
        epoch=before.epoch + 1,
        empty_since_ms=None,
        claim="",
    )
    data = znodes.encode_coordinator(value)
    operations: list[Operation] = [
        Set(path, znodes.encode_group(znodes.KIND_NATIVE), znode.version),
        Create(mine, data) if coordinator is None else Set(mine, data, coordinator.version),
    ]
    if before.claim:
        operations.append(Delete(znodes.claim_path(group, before.claim)))
    return operations


def _read(group: str, coordinator: Znode | None) -> znodes.Coordinator:
    if coordinator is None:
        return UNCLAIMED
    return znodes.decode_coordinator(znodes.coordinator_path(group), coordinator.data)
