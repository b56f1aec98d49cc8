"""The kind of a consumer group, "native" or "kafka", and the conversion of a group to "native".

A native group coordinates through ZooKeeper, without a broker. The first member decides the kind. A
native member creates the group as "native". Any other creation, such as a commit without a member,
makes the group "kafka". A "kafka" group is *open* until its first generation of Kafka members
begins. A native member may convert an open group, which keeps its offsets.

The conversion is a compare-and-set of the group's coordinator znode that removes the coordinator's
claim (its right to write, ``group_claims``), so it fences the coordinator's writes in flight. A
group with offsets of open transactions is not converted. A native group never gets such offsets,
because native members read only committed offsets."""

from __future__ import annotations

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set, Znode, put
from broker_lite.model import NO_BROKER, NO_EPOCH


def is_open(group: str, kind: str, coordinator: Znode | None) -> bool:
    """Return whether a group has never had members, so that its first member may be of either kind:
    Kafka or native (one that coordinates through ZooKeeper).

    ``coordinator`` is the group's coordinator znode. Raises UnsupportedVersionError if a later
    version of logbus has written it."""
    return kind == znodes.KIND_KAFKA and not znodes.read_coordinator(group, coordinator).generation


def made_native(
    group: str, znode: Znode, coordinator: Znode | None, *, has_pending: bool
) -> list[Operation]:
    """Return the operations of one ZooKeeper write that converts an open group (one without members
    so far) to a native group. Offsets do not change.

    ``znode`` is the group's znode, and ``coordinator`` its coordinator znode, both as ``is_open``
    has examined them. ``has_pending`` tells whether the znode /consumers/<group>/pending exists,
    below which offsets of open transactions are stored. ZooKeeper refuses the write if one of these
    znodes has changed, or if open transactions have offsets of the group."""
    path, mine = znodes.group_path(group), znodes.coordinator_path(group)
    before = znodes.read_coordinator(group, coordinator)
    # ``None`` means that the time at which the group became empty is unknown. Brokers poll native
    # groups, and set this time once they find no member (``GroupOffsets.note_members``).
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
        put(mine, data, coordinator),
    ]
    if before.claim:
        operations.append(Delete(znodes.claim_path(group, before.claim)))
    pending = znodes.pending_path(group)
    if not has_pending:
        operations.append(Create(pending))
    # This znode has children if an open transaction has offsets of the group. ZooKeeper then
    # refuses to delete it, and with it the whole write.
    operations.append(Delete(pending))
    return operations
