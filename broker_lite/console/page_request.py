"""The input from which a page makes its data: the fields of the request, and the newest state of
the cluster that the console has read. The parts of the state that the viewer (the page's user) may
not describe are left out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from broker_lite.bus.blocking import Bus
from broker_lite.client.administration.admin import Admin
from broker_lite.client.administration.many_groups import GroupLag
from broker_lite.client.operations.cluster import ClusterView, TopicMetadata
from broker_lite.console.memory import release
from broker_lite.console.sessions import Viewer, VisibleNames
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import (
    GroupIdNotFoundError,
    InvalidRequestError,
    SearchLimitError,
    UnknownTopicOrPartitionError,
)
from broker_lite.observing.reading import ClusterReading, GroupReading, topic_lags, total_lag
from broker_lite.observing.sampler import Sampler
from broker_lite.observing.verdict import causes

Data = dict[str, Any]
"""The data of a page: texts, numbers, lists and dictionaries, for the template and for JSON."""


PAGE_MS = 3000
"""Maximum milliseconds that a page waits for the brokers. A change waits longer (``ANSWER_MS`` of
``sessions``)."""
WAIT_S = 2.0
"""Maximum seconds that a search waits until fewer than ``SEARCHES`` run."""
SEARCHES, TAILS, DOWNLOADS = 3, 5, 8
"""Maximum concurrent searches (including those of exports), live tails, and downloads. The files of
downloads take space in the temporary folder."""


class Desk:
    """Limits the concurrent searches, live tails and downloads of a console. Any thread may use
    it."""

    def __init__(self) -> None:
        self.searches = threading.Semaphore(SEARCHES)
        self.tails = threading.Semaphore(TAILS)
        self.downloads = threading.Semaphore(DOWNLOADS)

    @contextlib.contextmanager
    def search(self) -> Iterator[None]:
        """Hold the permit for one search during the ``with`` block. Raises SearchLimitError if no
        permit is free within ``WAIT_S``."""
        if not self.searches.acquire(timeout=WAIT_S):
            raise SearchLimitError(f"{SEARCHES} searches or exports run already; try again soon")
        try:
            yield
        finally:
            release()
            self.searches.release()


class PageRequest(NamedTuple):
    """A request for a page.

    ``reading`` is the cluster's newest state that the console has read, without the parts that the
    user (``viewer``) may not describe. ``path`` has the names in the URL's path (such as the
    topic), and ``query`` the URL's query fields."""

    reading: ClusterReading
    sampler: Sampler
    viewer: Viewer
    settings: ConsoleSettings
    path: Mapping[str, str]
    query: Mapping[str, str]
    desk: Desk

    @property
    def bus(self) -> Bus:
        return self.viewer.bus

    @property
    def view(self) -> ClusterView:
        """The cluster's brokers, topics and leaders, as the console last read them."""
        return self.reading.sample.view

    @property
    def admin(self) -> Admin:
        """The administration client with which a page reads data, with the rights of the page's
        user."""
        return self.bus.admin.within(PAGE_MS)

    @property
    def sees_all(self) -> bool:
        """Whether the page's user may see totals of the whole cluster."""
        visible = self.viewer.visible
        return visible is None or visible.describes_cluster

    def may_describe(self, topic: str) -> bool:
        """Return whether the page's user may know the name of the topic."""
        visible = self.viewer.visible
        return visible is None or topic in visible.topics

    def topic(self) -> TopicMetadata:
        """Return the topic that the URL's path names. Raises UnknownTopicOrPartitionError."""
        name = self.path["topic"]
        topic = self.view.topics.get(name)
        if topic is None or topic.error is not None:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist, or you may not describe it. A new topic shows "
                "here within seconds"
            )
        return topic

    def group(self) -> GroupReading:
        """Return the group that the URL's path names. Raises GroupIdNotFoundError."""
        name = self.path["group"]
        group = self.reading.groups.get(name)
        if group is None:
            raise GroupIdNotFoundError(
                f"group {name!r} does not exist, or you may not describe it. A new group shows "
                "here within seconds"
            )
        return group

    def lag_history(self, group: str) -> list[float] | None:
        """Return the lags that the group had at the last samples, the newest last. None if they
        count records of a topic that the page's user may not describe."""
        whole = self.sampler.reading
        read = () if whole is None or group not in whole.groups else whole.groups[group].topics
        if not all(map(self.may_describe, read)):
            return None
        return self.sampler.groups.values(group)

    def number(self, key: str) -> int | None:
        """Return a query field as a number, or None if it is empty. Raises InvalidRequestError for
        a text of other than 1 to 18 digits."""
        text = self.query.get(key, "").strip()
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise InvalidRequestError(f"{key}={text[:40]!r}: give a whole number")
        return int(text)


def seen_by(reading: ClusterReading, visible: VisibleNames | None) -> ClusterReading:
    """Return ``reading`` (the cluster's observed state) without the topics, groups and data
    directories that the page's user may not describe. If ``visible`` is None, the user may describe
    all."""
    if visible is None:
        return reading
    sample = reading.sample
    view = replace(
        sample.view,
        topics={
            name: topic for name, topic in sample.view.topics.items() if name in visible.topics
        },
    )
    sample = sample._replace(
        view=view,
        moves={tp: move for tp, move in sample.moves.items() if tp.topic in visible.topics},
        reports=sample.reports if visible.describes_cluster else (),
    )
    groups, lags = _groups_seen_by(reading, visible)
    most = topic_lags(lags)
    topics = {
        name: row._replace(lag=most.get(name))
        for name, row in reading.topics.items()
        if name in visible.topics
    }
    return reading._replace(
        sample=sample,
        causes=tuple(causes(sample, reading.groups_failure)),
        starts={tp: at for tp, at in reading.starts.items() if tp.topic in visible.topics},
        ends={tp: at for tp, at in reading.ends.items() if tp.topic in visible.topics},
        topics=topics,
        groups=groups,
        lags=lags,
        records_per_s=sum(row.records_per_s for row in topics.values()),
    )


def _groups_seen_by(
    reading: ClusterReading, visible: VisibleNames
) -> tuple[dict[str, GroupReading], dict[str, GroupLag]]:
    """Return the groups that the page's user may describe, and the lags of these groups, both by
    group name. Partitions of topics that the user may not describe are left out."""
    groups, lags = {}, {}
    for name, row in reading.groups.items():
        if name not in visible.groups:
            continue
        parts = {
            tp: part
            for tp, part in reading.lags[name].partitions.items()
            if tp.topic in visible.topics
        }
        lag, lag_s = total_lag(parts.values())
        names = tuple(topic for topic in row.topics if topic in visible.topics)
        groups[name] = row._replace(topics=names, lag=lag, lag_s=lag_s)
        lags[name] = reading.lags[name]._replace(partitions=parts)
    return groups, lags
