"""What happens to a Kafka group: the inputs of ``group.Group.step``.

Tuples of values, made by the shell (``server/group_coordinator.py``) on its one thread. A token
names one request and is never reused; each gets exactly one ``effects.Reply``, at once or later.
``instance_id`` is a static member's name (``group.instance.id``), None for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError


class Limits(NamedTuple):
    """The broker's settings that a group obeys."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    """How long the first members of an empty group wait for others, so that one rebalance does."""
    size_max: int = 1_000
    member_bytes_max: int = 256 << 10
    """Of what one member says of itself."""
    group_bytes_max: int = 16 << 20
    """Of what all members of a group say of themselves, which its leader is told in one answer, and
    of what it says in return. In Kafka both have to fit into one record of a topic."""


class Protocol(NamedTuple):
    """A way to assign partitions that a member knows, with its subscription in that form."""

    name: str
    metadata: bytes


class Former(NamedTuple):
    """How many members the generation had that was taken over, whom this coordinator cannot name.
    They read on until they are told; ``until_ms``: by then each that lives was."""

    members: int
    until_ms: int


NOBODY = Former(0, 0)


class Join(NamedTuple):
    """JoinGroup. ``new_member_id`` is what the shell made up for a member that has no id yet;
    ``must_ask_twice``: such a member is only told its id, and joins with it (KIP-394)."""

    token: int
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    new_member_id: str
    must_ask_twice: bool = True
    can_skip_assignment: bool = True
    """Version 9: a static leader that returns may be told that it has nothing to assign."""
    partition_counts: Mapping[str, int] | None = None
    """Of the group's topics, as the shell knows them, where a static leader may come back: it is
    to assign what was added while it was away."""

    @property
    def said_bytes(self) -> int:
        """How much the member says of itself."""
        return sum(len(row.name) + len(row.metadata) for row in self.protocols)


class Sync(NamedTuple):
    """SyncGroup. ``assignments`` (member id, bytes) come from the leader alone."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    protocol_type: str | None = None
    protocol_name: str | None = None


class Heartbeat(NamedTuple):
    token: int
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """A static member may be named by its instance id alone: that is how an operator removes it."""

    member_id: str
    instance_id: str | None = None


class Leave(NamedTuple):
    token: int
    members: tuple[Leaver, ...]


class Commit(NamedTuple):
    """May this commit be written? Who names no member (empty id, generation -1) may while there is
    none."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int


class GenerationWritten(NamedTuple):
    """``effects.WriteGeneration`` is in ZooKeeper."""

    generation: int


class Tick(NamedTuple):
    """Time has passed; due whenever ``Group.deadline_ms`` has come."""


class Resigned(NamedTuple):
    """This broker is not the group's coordinator any more: whoever waits is told so."""

    error: LogbusError


Event = Join | Sync | Heartbeat | Leave | Commit | GenerationWritten | Tick | Resigned
