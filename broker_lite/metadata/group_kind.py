"""The kind of a group: native or Kafka. Pure.

The first member decides the kind. A native member creates the group as "native". Any other
creation, such as a commit without a member, makes it "kafka". A "kafka" group stays open until its
first generation of Kafka members is written: until then a native member may convert it, with its
offsets. The conversion is a compare-and-set of the coordinator znode and removes the claim. It thus
fences writes of a broker that are in flight. A group with offsets of open transactions is not
converted, and a native group never gets such offsets, because native members read only committed
offsets. Called by ``native/`` and the brokers.
"""

from __future__ import annotations

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set, Znode
from broker_lite.model import NO_BROKER, NO_EPOCH

UNCLAIMED = znodes.CoordinatorZnode(NO_BROKER, NO_EPOCH, 0, 0, None)


def is_open(group: str, kind: str, coordinator: Znode | None) -> bool:
    """Return whether a group has never had members, so that members of either kind may join.

    Raises UnsupportedVersionError for a coordinator znode of a later version.
    """
    return kind == znodes.KIND_KAFKA and not _read(group, coordinator).generation


def made_native(
    group: str, znode: Znode, coordinator: Znode | None, *, has_pending: bool
) -> list[Operation]:
    """Return the write that converts an open group to a native one. Offsets do not change.

    ``znode`` and ``coordinator`` are the znodes that were passed to ``is_open``. ``has_pending``:
    the parent of pending offsets exists. ZooKeeper refuses the write if any of this has changed
    since, or if the group has pending offsets.
    """
    path, mine = znodes.group_path(group), znodes.coordinator_path(group)
    before = _read(group, coordinator)
    # Set None, because brokers find out by polling when a native group becomes empty
    # (``GroupOffsets.note_members``).
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
    pending = znodes.pending_path(group)
    if not has_pending:
        operations.append(Create(pending))
    # ZooKeeper refuses to delete a parent that has children.
    operations.append(Delete(pending))
    return operations


def _read(group: str, coordinator: Znode | None) -> znodes.CoordinatorZnode:
    if coordinator is None:
        return UNCLAIMED
    return znodes.decode_coordinator(znodes.coordinator_path(group), coordinator.data)
