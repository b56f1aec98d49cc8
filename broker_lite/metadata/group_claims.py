"""Claims: a broker's exclusive right to write the offsets of a consumer group.

The broker that becomes a group's coordinator claims the group by a compare-and-set of the znode
/consumers/<group>/coordinator. Each later write for the group checks that this znode still has the
version of the broker's last write. A newer claim therefore fences all writes of the former
coordinator, including writes in flight.

If a group is deleted and created anew, versions start at 0 again. Each claim therefore also creates
a child znode with a unique name, and each write checks that this znode exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Check, Create, Delete, MetadataStore, Operation, Znode, put

ATTEMPTS_MAX = 20


@dataclass(slots=True, eq=False)
class GroupClaim:
    """This broker's exclusive right to write the offsets of one group.

    ``value`` and ``version`` are those of the group's coordinator znode after this broker's last
    write. ``held`` becomes False once a write finds that another broker has become coordinator."""

    group: str
    kind: str
    value: znodes.CoordinatorZnode
    version: int
    held: bool = True

    @property
    def mark(self) -> str:
        """The path of the znode that marks this claim (right to write): the broker creates it below
        the coordinator znode, and the next coordinator deletes it."""
        return znodes.claim_path(self.group, self.value.claim)

    @property
    def checks(self) -> tuple[Check, Check]:
        """The version checks that every write for the group must include, so that the write fails
        once another broker has become the group's coordinator."""
        return Check(znodes.coordinator_path(self.group), self.version), Check(self.mark, -1)

    def is_seen_in(self, znode: Znode | None) -> bool:
        """Return whether the group's coordinator znode, as read, still names this claim, so that
        this broker may still write. The znode may have a later generation than this claim."""
        return znodes.read_coordinator(self.group, znode).claim == self.value.claim


async def make_claim(
    store: MetadataStore,
    group: str,
    *,
    broker_id: int,
    broker_epoch: int,
    name: str,
    now_ms: Callable[[], int],
) -> GroupClaim:
    """Make this broker the only one that may write the group's offsets, and fence the former
    coordinator. A group that does not exist is created with the kind "kafka".

    ``name`` must differ from the names of all earlier claims. The new coordinator does not know the
    group's members, so it records the group as empty until they join again. Raises
    InvalidGroupIdError, CoordinationUnavailableError, WriteConflictError."""
    path, mine = znodes.group_path(group), znodes.coordinator_path(group)
    for _ in range(ATTEMPTS_MAX):
        znode, present = await store.get(path), await store.get(mine)
        kind, operations = znodes.KIND_KAFKA, list[Operation]()
        if znode is None:
            operations.append(Create(path, znodes.encode_group(kind)))
        else:
            kind = znodes.decode_group(path, znode.data)
            operations.append(Check(path, znode.version))
        before = znodes.read_coordinator(group, present)
        empty_ms = before.empty_since_ms
        value = before._replace(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            epoch=before.epoch + 1,
            empty_since_ms=now_ms() if empty_ms is None else empty_ms,
            claim=name,
        )
        operations.append(put(mine, znodes.encode_coordinator(value), present))
        if before.claim:
            # If the group was deleted after this method read it, the former coordinator's claim
            # znode (right to write) no longer exists. Its deletion then fails, and with it the
            # whole write.
            operations.append(Delete(znodes.claim_path(group, before.claim)))
        operations.append(Create(znodes.claim_path(group, name)))
        if znode is None:
            operations.append(Create(znodes.offsets_path(group)))
        if await store.write(operations) is None:
            version = 0 if present is None else present.version + 1
            return GroupClaim(group, kind, value, version)
    raise WriteConflictError(
        f"other brokers keep taking over the coordination of group {group!r}; try again"
    )
