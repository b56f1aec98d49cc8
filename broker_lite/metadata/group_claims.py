"""Claims of groups: which broker writes a group's offsets. Loop thread.

A broker claims a group by compare-and-set of /consumers/<group>/coordinator; each of its writes for
the group checks the version that its claim, or its last generation, gave that znode. Whoever claims
it afterwards therefore ends every write of the former one, also those that are on their way. As a
group that is deleted and made again begins with the same versions, each claim has a znode of its
own below that one, under a name that none had before, and each write checks that it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Check, Create, Delete, MetadataStore, Operation, Set, Znode

ATTEMPTS_MAX = 20


@dataclass(slots=True, eq=False)
class Claim:
    """``version`` is the coordinator znode's; ``held`` until a write of ours finds another."""

    group: str
    kind: str
    value: znodes.Coordinator
    version: int
    held: bool = True

    @property
    def mark(self) -> str:
        """The path of the znode that this claim alone has."""
        return znodes.claim_path(self.group, self.value.claim)

    @property
    def checks(self) -> tuple[Check, Check]:
        """For every write of the group: it is refused where the claim is lost."""
        return Check(znodes.coordinator_path(self.group), self.version), Check(self.mark, -1)

    def is_seen_in(self, znode: Znode | None) -> bool:
        """Whether the coordinator znode is still this claim's, in whatever generation."""
        path = znodes.coordinator_path(self.group)
        if znode is None:
            return False
        return znodes.decode_coordinator(path, znode.data).claim == self.value.claim


async def make_claim(
    store: MetadataStore,
    group: str,
    *,
    broker_id: int,
    broker_epoch: int,
    name: str,
    now_ms: Callable[[], int],
) -> Claim:
    """Take the group over, wherever it was; make it, of kind "kafka" (``group_kind``), if there is
    none.

    ``name``: one that no claim ever had. The group's members, if it had any, are not known to the
    new coordinator: it counts as empty from now on. Raises InvalidGroupIdError,
    CoordinationUnavailableError, WriteConflictError.
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
        version, epoch, generation, empty_ms, former = -1, 0, 0, None, ""
        members = session_ms = 0
        if present is not None:
            before = znodes.decode_coordinator(mine, present.data)
            version, epoch, generation = present.version, before.epoch, before.generation
            empty_ms, former = before.empty_since_ms, before.claim
            members, session_ms = before.members, before.session_timeout_ms
        value = znodes.Coordinator(
            broker_id,
            broker_epoch,
            epoch + 1,
            generation,
            now_ms() if empty_ms is None else empty_ms,
            name,
            members,
            session_ms,
        )
        data = znodes.encode_coordinator(value)
        operations.append(Create(mine, data) if present is None else Set(mine, data, version))
        if former:
            # Refused where what was read is of a group that was deleted since.
            operations.append(Delete(znodes.claim_path(group, former)))
        operations.append(Create(znodes.claim_path(group, name)))
        if znode is None:
            operations.append(Create(znodes.offsets_path(group)))
        if await store.write(operations) is None:
            return Claim(group, kind, value, version + 1)
    raise WriteConflictError(f"group {group!r} is being claimed by others; try again")
