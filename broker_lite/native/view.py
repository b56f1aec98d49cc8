"""What one consumer of a native group (without a coordinator) has read from ZooKeeper: the group's
members, and the topics to which the consumer subscribes. No I/O.

Every read of a znode also sets a watch, so no later change goes unnoticed. After a watch has fired,
the view reads only the changed znode again. The view also creates the znodes of each new topic in
the group. One of them records how many partitions the topic had when the group began to read it.
For a topic that was created after a member had subscribed, this number is 0, because the group
reads all its records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker_lite.errors import UnsupportedVersionError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Refused, Set, Znode
from broker_lite.metadata.znodes import Assignment, FirstReadZnode, NativeSubscription, OwnerZnode
from broker_lite.model import TopicPartition
from broker_lite.native.assignment import assign, covers, selection
from broker_lite.native.pending_requests import PendingRequests


class WatchedTopic(NamedTuple):
    """A topic to which the consumer subscribes.

    ``first_count`` is the number of partitions that the topic had when the group began to read it,
    or 0 for a topic that was created later. Partitions with the number ``first_count`` or a higher
    one are newer; the group reads them from their earliest record."""

    topic_id: str
    partition_count: int
    first_count: int


class View:
    """The members of a group and the topics of one consumer, as read from ZooKeeper.

    After ``read`` has read all changed znodes, it calls ``on_read``, and the consumer computes the
    assignment."""

    def __init__(
        self,
        requests: PendingRequests,
        group: str,
        subscription: NativeSubscription,
        on_read: Callable[[], None],
    ) -> None:
        self.members: dict[str, NativeSubscription] = {}
        self.topics: dict[str, WatchedTopic] = {}
        self.is_reading = False
        self._requests = requests
        self._group = group
        self._subscription = subscription
        self._on_read = on_read
        self._reads_left = 0
        self._registered_zxids: dict[str, int] = {}
        """The id (zxid) of the ZooKeeper transaction that created each member's registration. Lower
        ids are earlier."""
        self._members_left = 0
        self._began: dict[NativeSubscription, int] = {}
        """For each subscription (topic names or pattern), the zxid of its earliest registration."""
        self._unrecorded: list[tuple[str, Assignment, int]] = []
        """Name, assignment and creation zxid of the new topics that ``_record`` records once all
        members have been read."""
        self._initial_topics: set[str] = set()
        """Ids of the topics to which the consumer's option ``start`` applies: at this view's first
        read, they were older than the registrations of all members that subscribe to them."""
        self._has_read = False
        self._names = set(subscription.topics)
        self._stale_topics: set[str] = set()
        self._stale_members = self._stale_names = False
        self._paths = {znodes.topic_path(name): name for name in subscription.topics}
        self.mark_all()

    @property
    def is_stale(self) -> bool:
        return self._stale_members or self._stale_names or bool(self._stale_topics)

    def owners(self, *, without: str = "") -> dict[TopicPartition, OwnerZnode]:
        """Return the owner of each partition by the range assignment. It leaves out the member
        named ``without``."""
        counts = {name: facts.partition_count for name, facts in self.topics.items()}
        members = {name: row for name, row in self.members.items() if name != without}
        return assign(members, counts)

    def rank_of(self, name: str) -> int:
        """Return the number of members that registered before the member ``name``."""
        return sum(
            since < self._registered_zxids[name] for since in self._registered_zxids.values()
        )

    # Methods that mark znodes as stale: their cached values are out of date.

    def mark_all(self) -> None:
        self._stale_members = True
        self._stale_names = self._subscription.pattern is not None
        self._stale_topics = set(self._names)

    def mark(self, path: str) -> None:
        """Mark a znode whose watch has fired, so that the next ``read`` reads it again."""
        if path == znodes.consumers_path(self._group):
            self._stale_members = True
        elif path == znodes.TOPICS:
            self._stale_names = True
        elif path in self._paths:
            self._stale_topics.add(self._paths[path])

    def mark_topic(self, topic: str) -> None:
        """Mark a topic whose znodes in the group (of its owners and offsets) are missing, so that
        ``read`` creates them again."""
        self.topics.pop(topic, None)
        self._stale_topics.add(topic)

    def forget(self) -> None:
        """Forget all requests and watches, because the connection to ZooKeeper is lost."""
        self.is_reading = False
        self._reads_left = self._members_left = 0
        self._unrecorded.clear()
        self.mark_all()

    # Methods that read the znodes whose cached values are out of date (stale).

    def read(self) -> None:
        """Read the znodes that have changed since they were last read, then call ``on_read``."""
        assert not self.is_reading
        self.is_reading = True
        self._reads_left = 1
        if self._stale_members:
            self._stale_members = False
            self._reads_left += 1
            self._members_left = 1
            self._requests.list(znodes.consumers_path(self._group), self._listed, watch=True)
        if self._stale_names:
            self._stale_names = False
            self._reads_left += 1
            self._requests.list(znodes.TOPICS, self._named, watch=True)
        self._read_topics()
        self._read_done()

    def _read_done(self) -> None:
        self._reads_left -= 1
        if self._reads_left == 0:
            self.is_reading = False
            self._has_read = True
            self._on_read()

    def _listed(self, names: list[str] | None) -> None:
        listed = names or []
        self.members = {name: self.members[name] for name in listed if name in self.members}
        for name in listed:
            if name not in self.members:
                self._members_left += 1
                path = znodes.consumer_path(self._group, name)
                self._requests.get(path, partial(self._member, name, path))
        self._member_done()

    def _member(self, name: str, path: str, znode: Znode | None) -> None:
        # Skip a member that has left since the list was read: the watch on the list causes a new
        # read.
        if znode is not None:
            self._registered_zxids[name] = znode.created_zxid
            try:
                self.members[name] = znodes.decode_subscription(path, znode.data)
            except UnsupportedVersionError:
                # A later version of logbus registered this member. Assign it no partitions, as all
                # members do that cannot read the registration.
                self.members[name] = NativeSubscription((), None, 0)
        self._member_done()

    def _member_done(self) -> None:
        self._members_left -= 1
        if self._members_left == 0:
            self._registered_zxids = {name: self._registered_zxids[name] for name in self.members}
            self._began = {}
            for name, member in self.members.items():
                selected, zxid = selection(member), self._registered_zxids[name]
                self._began[selected] = min(zxid, self._began.get(selected, zxid))
            unrecorded, self._unrecorded = self._unrecorded, []
            for row in unrecorded:
                self._record(*row)
            self._read_done()

    def _named(self, names: list[str] | None) -> None:
        matching = {name for name in names or () if covers(self._subscription, name)}
        for name in self._names - matching - set(self._subscription.topics):
            self.topics.pop(name, None)
        new = matching - self._names
        self._names = matching | set(self._subscription.topics)
        self._paths = {znodes.topic_path(name): name for name in self._names}
        self._stale_topics |= new
        self._read_topics()
        self._read_done()

    def _read_topics(self) -> None:
        for topic in sorted(self._stale_topics & self._names):
            self._reads_left += 1
            self._requests.get(znodes.topic_path(topic), partial(self._topic, topic), watch=True)
        self._stale_topics.clear()

    def _topic(self, topic: str, znode: Znode | None) -> None:
        if znode is None:
            self.topics.pop(topic, None)
            self._read_done()
            return
        assignment = znodes.decode_assignment(znodes.topic_path(topic), znode.data)
        known = self.topics.get(topic)
        if known is not None and known.topic_id == assignment.topic_id:
            self.topics[topic] = known._replace(partition_count=len(assignment.replicas))
            self._read_done()
            return
        if self._members_left:
            self._unrecorded.append((topic, assignment, znode.created_zxid))
        else:
            self._record(topic, assignment, znode.created_zxid)

    def _record(self, topic: str, assignment: Assignment, created_zxid: int) -> None:
        """Record a new topic in the group's znodes, unless another member has recorded it already.

        If the topic is older than the registrations of all members that subscribe to it, the
        consumer's option ``start`` decides at which offsets the group begins to read the topic's
        present partitions. Otherwise the group reads all records of the topic."""
        began = (zxid for selected, zxid in self._began.items() if covers(selected, topic))
        if not self._has_read and created_zxid < min(began, default=created_zxid + 1):
            self._initial_topics.add(assignment.topic_id)
        first = self._first(assignment, is_another=False)
        path = znodes.topic_offsets_path(self._group, topic)
        self._requests.write([Create(znodes.topic_owners_path(self._group, topic))], _ignore_result)
        self._requests.write([Create(path, znodes.encode_first_read(first))], _ignore_result)
        self._requests.get(path, partial(self._first_read, topic, assignment))

    def _first_read(self, topic: str, assignment: Assignment, znode: Znode | None) -> None:
        path = znodes.topic_offsets_path(self._group, topic)
        count = len(assignment.replicas)
        if znode is None:
            # The parent of the znode is missing, because another client is deleting the group. Try
            # again.
            self._retry_topic(topic)
            return
        known = znodes.decode_first_read(path, znode.data) if znode.data else None
        if known is not None and known.topic_id == assignment.topic_id:
            self._ready(
                topic, WatchedTopic(assignment.topic_id, count, known.partition_count), None
            )
            return
        first = self._first(assignment, is_another=known is not None)
        facts = WatchedTopic(assignment.topic_id, count, first.partition_count)
        write = Set(path, znodes.encode_first_read(first), znode.version)
        self._requests.write([write], partial(self._ready, topic, facts))

    def _first(self, assignment: Assignment, *, is_another: bool) -> FirstReadZnode:
        """Return the content to write into the group's znode for a topic: the topic's id, and its
        number of partitions if it is one of ``_initial_topics``, else 0.

        The number is 0 too if ``is_another``: the znode still describes a deleted topic of the same
        name."""
        is_old = assignment.topic_id in self._initial_topics and not is_another
        return FirstReadZnode(assignment.topic_id, len(assignment.replicas) if is_old else 0)

    def _ready(self, topic: str, facts: WatchedTopic, refused: Refused | None) -> None:
        if refused is not None:
            self._retry_topic(topic)
            return
        if topic in self._names:
            self.topics[topic] = facts
        self._read_done()

    def _retry_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self._stale_topics.add(topic)
        self._read_done()


def _ignore_result(refused: Refused | None) -> None:
    """Ignore the result of creating a znode. Either the znode exists now, or its parent is missing,
    which ``_first_read`` notices."""
