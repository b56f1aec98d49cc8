"""Names of the field as values: what crosses the borders between packages.

Everything here is frozen and has no behaviour beyond conversion. ``end_*``, ``next_*`` and
``log_end_*`` are exclusive; ``last_*`` inclusive. A *position* is a byte in a file, never an
offset. Imports nothing of logbus.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NO_BROKER = -1
NO_OFFSET = -1
NO_EPOCH = -1
FIRST_EPOCH = 0
"""Of a partition's leaders."""
NO_TIMESTAMP = -1
NO_PRODUCER = -1

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6

NULL_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The text of sixteen zero bytes: "no topic id" on the wire."""

MIRROR_PREFIX = "logbus-mirror-"
"""Begins the name of the group and the topic, on the target, in which a mirror notes how far it
has come; the source's cluster id follows."""

NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def topic_id_text(raw: bytes) -> str:
    """Sixteen bytes as the 22 characters that people, paths and znodes see (Kafka's base64url)."""
    return base64.urlsafe_b64encode(raw)[:22].decode("ascii")


def topic_id_bytes(text: str) -> bytes:
    """The sixteen bytes that the wire carries for a topic id's text."""
    return base64.urlsafe_b64decode(text + "==")


def is_valid_name(name: str) -> bool:
    """Whether a topic name is one that paths, znodes and metrics can hold (Kafka's rule)."""
    return (
        0 < len(name) <= NAME_LENGTH_MAX
        and name not in (".", "..")
        and _NAME.fullmatch(name) is not None
    )


class TopicPartition(NamedTuple):
    """A partition as users name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionKey(NamedTuple):
    """A partition as storage knows it: by topic id, so a recreated topic is another topic."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class OffsetAndEpoch(NamedTuple):
    """A position in a log, with the leader epoch of the record before it (-1 if unknown)."""

    offset: int
    leader_epoch: int = NO_EPOCH


class CommittedOffset(NamedTuple):
    """A group's progress in one partition: the next offset to read."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: str = NULL_TOPIC_ID
    commit_ms: int = NO_TIMESTAMP


class ListedOffset(NamedTuple):
    """An answer to "which offset": ``timestamp_ms`` is -1 unless one was asked for and found."""

    offset: int
    timestamp_ms: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class ReplicaId(NamedTuple):
    """A replica is a broker and its disk: another data directory is another replica."""

    broker_id: int
    directory_id: str


class Endpoint(NamedTuple):
    """Where a listener is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A live broker as the registry names it.

    ``draining``: it is about to stop, so it leads nothing and joins no ISR any more. ``is_full``:
    its disk has no room, which holds for the same until it has.
    """

    broker_id: int
    endpoint: Endpoint
    directory_id: str
    broker_epoch: int
    rack: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    draining: bool = False
    is_full: bool = False

    @property
    def takes_records(self) -> bool:
        """Whether it may lead and join ISRs where another broker could do so instead."""
        return not (self.draining or self.is_full)


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The state of a partition: who leads, since which epoch, and who is in sync.

    ``version`` is the state znode's version, against which every change is a compare-and-set.
    ``leader`` is -1 while no in-sync replica lives; ``isr`` then keeps its last members.
    ``leader_broker_epoch`` is the registration that was made leader: a later process of the same
    broker does not lead until it is elected anew, so no leader epoch has two processes.
    """

    leader: int
    leader_epoch: int
    isr: tuple[ReplicaId, ...]
    controller_epoch: int
    version: int = 0
    leader_broker_epoch: int = NO_EPOCH


class StateChange(NamedTuple):
    """A state to write; ``state.version`` is the version that the write must find.

    ``topic_id``: a topic that was made anew has small versions again, so they alone do not tell.
    """

    topic: str
    partition: int
    state: LeaderAndIsr
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as the metadata snapshot holds it.

    While it is reassigned ``replicas`` are those of both ends, the target's first: ``adding`` ones
    are to join, ``removing`` ones go once all others are in sync.
    """

    partition: int
    replicas: tuple[int, ...]
    state: LeaderAndIsr
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that are meant to stay, the preferred leader first."""
        if not self.removing:
            return self.replicas
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as the metadata snapshot holds it; ``partitions[p].partition == p``."""

    name: str
    topic_id: str
    partitions: tuple[PartitionView, ...]
    config: Mapping[str, str] = field(default_factory=dict)
