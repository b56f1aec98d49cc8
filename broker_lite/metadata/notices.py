"""The notices of /changes: what changed, told to all brokers in one znode instead of a watch each.

Whoever changes a topic, a state or the cluster itself adds a notice in the same write, checked
against the znode's version, which is the notice's sequence: so notices are all changes, in order. A
notice of states says what they are now, where there is room for that; a reader then takes them from
it, and reads the znodes of those that it does not say (or that a broker wrote which did not know
that it may). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_lite.metadata.store import Set
from broker_lite.metadata.znodes import CHANGES, decode_value, encode_value
from broker_lite.model import LeaderAndIsr, ReplicaId, StateChange

KEPT_MAX = 64
"""Notices that /changes holds: a broker that missed more reads everything again."""
KEPT_BYTES_MAX = 64 << 10
"""And so many bytes of them, but always the newest: they go with every write of the controller,
and ZooKeeper takes 1 MB at once, of which creating a large topic needs most."""
STATES_KEPT_MAX = 8
"""So many of the newest notices say what their states are: every later notice is read with them,
and a broker that is further behind can read those few."""


class Told(NamedTuple):
    """States as a notice says them: a row for each partition that it names of a topic, which is
    version, leader, leader epoch, leader's broker epoch, controller epoch, and then the ISR's
    places in ``replicas``."""

    replicas: Sequence[Sequence[Any]]
    rows: Mapping[str, Sequence[Sequence[int]]]


class News(NamedTuple):
    """What a notice says: topics that changed as a whole (None) or in the states of some
    partitions; no topic at all stands for the cluster itself."""

    topics: Mapping[str, Sequence[int] | None]
    told: Told | None = None


class Notice(NamedTuple):
    sequence: int
    news: News


class Notices(NamedTuple):
    """/changes as read: ``sequence`` is its version."""

    sequence: int
    notices: tuple[Notice, ...]


class Announcement(NamedTuple):
    """A notice to be added: what to write, and what /changes holds once it was written."""

    write: Set
    after: Notices


class Merged(NamedTuple):
    """What several notices say together. ``topics``: None where one changed as a whole, else its
    partitions, each with its state as of the last of them, or None where that has to be read."""

    topics: Mapping[str, Mapping[int, LeaderAndIsr | None] | None]
    cluster: bool


def topic_changed(name: str) -> News:
    """A topic was made or deleted, or is another one in more than states."""
    return News({name: None})


CLUSTER_CHANGED = News({})
"""The features were raised, or a broker drains."""


def states_changed(states: Iterable[StateChange]) -> News:
    """These are states as they are once the notice is there, with the versions that they have."""
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
    return News(topics, Told([list(replica) for replica in replicas], rows))


def announce(before: Notices, news: News) -> Announcement:
    """Add a notice."""
    notice = Notice(before.sequence + 1, news)
    kept = (*before.notices, notice)[-KEPT_MAX:]
    kept = (*map(_names_alone, kept[:-STATES_KEPT_MAX]), *kept[-STATES_KEPT_MAX:])
    data = encode_notices(kept)
    if len(data) > KEPT_BYTES_MAX:
        kept = _fitting(kept)
        data = encode_notices(kept)
    return Announcement(Set(CHANGES, data, before.sequence), Notices(notice.sequence, kept))


def merge(notices: Notices, seen: int) -> Merged | None:
    """What the notices after ``seen`` say.

    None if one is missing, since too many were written, or if more was seen than there is; then
    only reading everything helps.
    """
    if notices.sequence < seen:
        return None
    topics: dict[str, dict[int, LeaderAndIsr | None] | None] = {}
    cluster = False
    wanted = set(range(seen + 1, notices.sequence + 1))
    for sequence, news in notices.notices:
        if sequence not in wanted:
            continue
        wanted.discard(sequence)
        cluster = cluster or not news.topics
        for topic, partitions in news.topics.items():
            known = topics.setdefault(topic, {})
            if partitions is None or known is None:
                topics[topic] = None
            else:
                known.update(_states(news.told, topic, partitions))
    return None if wanted else Merged(topics, cluster)


def _states(
    told: Told | None, topic: str, partitions: Sequence[int]
) -> dict[int, LeaderAndIsr | None]:
    if told is None:
        return dict.fromkeys(partitions)
    replicas = [ReplicaId(broker_id, directory) for broker_id, directory in told.replicas]
    return {
        partition: LeaderAndIsr(
            leader,
            leader_epoch,
            tuple([replicas[place] for place in isr]),
            controller_epoch,
            version,
            broker_epoch,
        )
        for partition, (version, leader, leader_epoch, broker_epoch, controller_epoch, *isr) in zip(
            partitions, told.rows[topic]
        )
    }


def _names_alone(notice: Notice) -> Notice:
    return notice if notice.news.told is None else Notice(notice.sequence, News(notice.news.topics))


def _fitting(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """The newest that there is room for, with their states as long as there is for those."""
    kept: list[Notice] = []
    size = 0
    for notice in reversed(notices):
        if size + _size(notice) > KEPT_BYTES_MAX:
            notice = _names_alone(notice)
        size += _size(notice)
        if kept and size > KEPT_BYTES_MAX:
            break
        kept.append(notice)
    return tuple(reversed(kept))


def encode_notices(notices: Sequence[Notice]) -> bytes:
    return encode_value({"changes": [_row(notice) for notice in notices]})


def decode_notices(data: bytes) -> tuple[Notice, ...]:
    return tuple([_notice(row) for row in decode_value(CHANGES, data)["changes"]])


def _size(notice: Notice) -> int:
    return len(encode_value(_row(notice)))


def _row(notice: Notice) -> dict[str, Any]:
    topics, told = notice.news
    row: dict[str, Any] = {"sequence": notice.sequence, "topics": dict(sorted(topics.items()))}
    if told is not None:
        row["states"] = {"replicas": told.replicas, "topics": dict(sorted(told.rows.items()))}
    return row


def _notice(row: dict[str, Any]) -> Notice:
    states = row.get("states")
    told = None if states is None else Told(states["replicas"], states["topics"])
    return Notice(row["sequence"], News(row["topics"], told))
