"""The identity of a group member, and the assignment changes that a consumer's reader receives."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker_lite.model import CommittedOffset, TopicPartition


class MemberIdentity(NamedTuple):
    """The identity with which a group member commits offsets.

    ``instance_id`` is the group.instance.id of a static member, else None."""

    member_id: str
    generation: int
    instance_id: str | None


NO_MEMBER = MemberIdentity("", -1, None)
"""The identity with which a client outside a group commits to that group."""


class StartBasis(NamedTuple):
    """The facts from which a group member chooses the offset where it begins to read a partition.

    ``committed`` is the group's committed offset, or None. ``is_added`` says that the partition was
    created after the group began to read the topic: all its records are new, and must be read."""

    committed: CommittedOffset | None
    is_added: bool
    topic_id: str


NO_BASES: Mapping[TopicPartition, StartBasis] = MappingProxyType({})


class Assign(NamedTuple):
    """The group assigned partitions to this member.

    ``grants`` has each partition's grant number, which identifies this assignment of the partition.
    ``bases`` has the facts that determine starting offsets; for a partition without them, the
    reader looks up the committed offset itself."""

    grants: Mapping[TopicPartition, int]
    bases: Mapping[TopicPartition, StartBasis] = NO_BASES


class Revoke(NamedTuple):
    """The group revoked partitions.

    The reader commits their positions, stops reading them, and then reports the revocation's
    ``number`` to the membership."""

    number: int
    tps: frozenset[TopicPartition]


class Lose(NamedTuple):
    """The member lost partitions, which other members probably own by now.

    The reader stops reading them and commits nothing for them."""

    tps: frozenset[TopicPartition]


Change = Assign | Revoke | Lose
