"""Values of a group member: its identity, and the changes of its partition assignment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker_lite.model import CommittedOffset, TopicPartition


class MemberIdentity(NamedTuple):
    """The identity under which a member commits: member id, generation and static instance id."""

    member_id: str
    generation: int
    instance_id: str | None


NO_MEMBER = MemberIdentity("", -1, None)
"""The identity of commits by a client outside the group."""


class StartBasis(NamedTuple):
    """The facts from which a consumer chooses the offset where it begins to read a partition for
    its group.

    ``committed`` is the group's committed offset, or None if the group has none. ``is_added`` says
    whether the partition was created after the group began to read the topic.
    """

    committed: CommittedOffset | None
    is_added: bool
    topic_id: str


NO_BASES: Mapping[TopicPartition, StartBasis] = MappingProxyType({})


class Assign(NamedTuple):
    """Assign partitions to the reader.

    ``grants`` has a number for each partition that is unique to this assignment of the partition.
    The reader looks up the committed offset of a partition that is not in ``bases``.
    """

    grants: Mapping[TopicPartition, int]
    bases: Mapping[TopicPartition, StartBasis] = NO_BASES


class Revoke(NamedTuple):
    """Revoke partitions. The reader commits and releases them, then reports ``number``."""

    number: int
    tps: frozenset[TopicPartition]


class Lose(NamedTuple):
    """Drop partitions that other members probably own. The reader commits nothing for them."""

    tps: frozenset[TopicPartition]


Change = Assign | Revoke | Lose
