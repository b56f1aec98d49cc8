"""Change notices: entries of the znode /changes that tell brokers which metadata changed.

Brokers watch this one znode instead of a znode per topic. Each write of a topic, a partition state,
a security setting or the cluster's features adds a notice in the same ZooKeeper transaction. The
write checks the version of /changes, so the notices contain every change, in order. The sequence
number of a notice is the version of /changes after its write.

A notice of new partition states includes the states themselves if they fit into KEPT_BYTES_MAX. A
broker applies included states without a read, and reads all other changed znodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_lite.metadata.store import Set
from broker_lite.metadata.znodes import CHANGES, decode_value, encode_value
from broker_lite.model import LeaderAndIsr, ReplicaId, StateChange

KEPT_MAX = 64
"""Maximum number of notices in /changes. If a notice is dropped before a broker has read it, the
broker reads all metadata again."""
KEPT_BYTES_MAX = 64 << 10
"""Maximum bytes of /changes. The newest notice is kept even if it alone is larger. Every write
of the controller includes this znode, and ZooKeeper accepts writes of at most 1 MB."""
STATES_KEPT_MAX = 8
"""Number of the newest notices that may include partition states. Older notices only name the
partitions, so that /changes stays small."""


class NoticeStates(NamedTuple):
    """The partition states in a change notice, in a compact form.

    ``replicas`` lists each replica once. ``rows`` has, for each topic, one row for each changed
    partition: znode version, leader, leader epoch, leader's broker epoch, controller epoch, then
    the ISR as indexes into ``replicas``."""

    replicas: Sequence[Sequence[Any]]
    rows: Mapping[str, Sequence[Sequence[int]]]


class NoticeContent(NamedTuple):
    """The changes that a notice announces.

    ``topics`` has the numbers of the changed partitions of each topic, or None if the topic was
    created, deleted or changed in another way. If ``topics`` and ``security`` are empty, the
    cluster itself changed (``CLUSTER_CHANGED``)."""

    topics: Mapping[str, Sequence[int] | None]
    states: NoticeStates | None = None
    security: Sequence[str] = ()
    """Znode paths of changed users, access control lists and quotas. Older brokers ignore this
    field. To them the notice is ``CLUSTER_CHANGED``: they read features and brokers again, which
    does no harm."""


class Notice(NamedTuple):
    sequence: int
    content: NoticeContent


class Notices(NamedTuple):
    """The change notices in the znode /changes. ``sequence`` is the version of the znode."""

    sequence: int
    notices: tuple[Notice, ...]


class Announcement(NamedTuple):
    """A change notice that is about to be written: the ZooKeeper operation to include in the write,
    and the content of /changes after the write."""

    write: Set
    after: Notices


class Merged(NamedTuple):
    """The changes that several change notices announce together.

    ``topics`` has the latest state of each changed partition, by topic and partition. A state of
    None must be read from ZooKeeper. If a topic has None in place of a mapping of states, the whole
    topic must be read. ``cluster`` tells whether the cluster itself changed
    (``CLUSTER_CHANGED``)."""

    topics: Mapping[str, Mapping[int, LeaderAndIsr | None] | None]
    cluster: bool
    security: frozenset[str] = frozenset()
    """Znode paths of changed users, access control lists and quotas."""


def topic_changed(name: str) -> NoticeContent:
    """Return the change notice of a topic that was created or deleted, or in which more than
    partition states changed."""
    return NoticeContent({name: None})


CLUSTER_CHANGED = NoticeContent({})
"""The notice that the cluster itself changed: its features, a broker's settings, or a broker that
is draining (about to stop) or has a full disk."""


def security_changed(path: str) -> NoticeContent:
    """Return the change notice that the user, access control list or quotas in the znode ``path``
    changed."""
    return NoticeContent({}, None, (path,))


def states_changed(states: Iterable[StateChange]) -> NoticeContent:
    """Return the change notice with new partition states. Each state must carry the version that
    its znode has after the write."""
    replicas: dict[ReplicaId, int] = {}
    topics: dict[str, list[int]] = {}
    rows: dict[str, list[list[int]]] = {}
    for name, partition, state, _ in states:
        isr = [replicas.setdefault(replica, len(replicas)) for replica in state.isr]
        topics.setdefault(name, []).append(partition)
        rows.setdefault(name, []).append(
            [
                state.version,
                state.leader,
                state.leader_epoch,
                state.leader_broker_epoch,
                state.controller_epoch,
                *isr,
            ]
        )
    return NoticeContent(topics, NoticeStates([list(replica) for replica in replicas], rows))


def announce(before: Notices, content: NoticeContent) -> Announcement:
    """Return the write that adds a change notice to the znode /changes, and drops the oldest
    notices above the limits of number and size."""
    notice = Notice(before.sequence + 1, content)
    notices = (*before.notices, notice)[-KEPT_MAX:]
    notices = (*map(_names_alone, notices[:-STATES_KEPT_MAX]), *notices[-STATES_KEPT_MAX:])
    data = encode_notices(notices)
    if len(data) > KEPT_BYTES_MAX:
        notices = _fitting(notices)
        data = encode_notices(notices)
    return Announcement(Set(CHANGES, data, before.sequence), Notices(notice.sequence, notices))


def merge(notices: Notices, seen: int) -> Merged | None:
    """Combine the change notices whose sequence number is above ``seen``, the last one that the
    caller has applied.

    Return None if /changes does not contain all these notices any more, or if ``seen`` is above the
    current sequence number. The caller must then read all metadata again."""
    if notices.sequence < seen:
        return None
    topics: dict[str, dict[int, LeaderAndIsr | None] | None] = {}
    cluster = False
    security: set[str] = set()
    expected = set(range(seen + 1, notices.sequence + 1))
    for sequence, content in notices.notices:
        if sequence not in expected:
            continue
        expected.discard(sequence)
        cluster = cluster or not (content.topics or content.security)
        security.update(content.security)
        for topic, partitions in content.topics.items():
            known = topics.setdefault(topic, {})
            if partitions is None or known is None:
                topics[topic] = None
            else:
                known.update(_decoded(content.states, topic, partitions))
    return None if expected else Merged(topics, cluster, frozenset(security))


def _decoded(
    states: NoticeStates | None, topic: str, partitions: Sequence[int]
) -> dict[int, LeaderAndIsr | None]:
    if states is None:
        return dict.fromkeys(partitions)
    replicas = [ReplicaId(broker_id, directory) for broker_id, directory in states.replicas]
    return {
        partition: LeaderAndIsr(
            leader,
            leader_epoch,
            tuple([replicas[index] for index in isr]),
            controller_epoch,
            version,
            broker_epoch,
        )
        for partition, (version, leader, leader_epoch, broker_epoch, controller_epoch, *isr) in zip(
            partitions, states.rows[topic]
        )
    }


def _names_alone(notice: Notice) -> Notice:
    if notice.content.states is None:
        return notice
    return Notice(notice.sequence, NoticeContent(notice.content.topics))


def _fitting(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """Return the newest change notices that together fit into KEPT_BYTES_MAX. A notice that fits
    only without its partition states is kept without them."""
    fitting: list[Notice] = []
    size = 0
    for notice in reversed(notices):
        if size + _size(notice) > KEPT_BYTES_MAX:
            notice = _names_alone(notice)
        size += _size(notice)
        if fitting and size > KEPT_BYTES_MAX:
            break
        fitting.append(notice)
    return tuple(reversed(fitting))


def encode_notices(notices: Sequence[Notice]) -> bytes:
    return encode_value({"changes": [_row(notice) for notice in notices]})


def decode_notices(data: bytes) -> tuple[Notice, ...]:
    return tuple([_notice(row) for row in decode_value(CHANGES, data)["changes"]])


def _size(notice: Notice) -> int:
    return len(encode_value(_row(notice)))


def _row(notice: Notice) -> dict[str, Any]:
    topics, states, security = notice.content
    row: dict[str, Any] = {"sequence": notice.sequence, "topics": dict(sorted(topics.items()))}
    if states is not None:
        row["states"] = {"replicas": states.replicas, "topics": dict(sorted(states.rows.items()))}
    if security:
        row["security"] = list(security)
    return row


def _notice(row: dict[str, Any]) -> Notice:
    state_rows = row.get("states")
    states = (
        None if state_rows is None else NoticeStates(state_rows["replicas"], state_rows["topics"])
    )
    return Notice(
        row["sequence"], NoticeContent(row["topics"], states, tuple(row.get("security", ())))
    )
