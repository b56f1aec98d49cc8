"""What one consumer knows of its group: who is in it, and which partitions there are. Pure.

Everything is read with a watch, so a change that is missed by a read fires the watch of that read.
Only what a watch named is read again. Each topic is made ready for the group as it is met: its
places in the ownership and offset registries, and how many partitions it had when the group first
read it: none, if it was made later than that, since its records are all new to the group then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker_lite.errors import UnsupportedVersionError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Refused, Set, Znode
from broker_lite.metadata.znodes import Assignment, FirstLook, Owner, Subscription
from broker_lite.model import TopicPartition
from broker_lite.native.asking import Asking
from broker_lite.native.assignment import assign, covers


class TopicFacts(NamedTuple):
    """A topic that the consumer reads; ``first_count``: partitions when the group began, 0 where
    the topic came after that. The others are read from their beginning."""

    topic_id: str
    partition_count: int
    first_count: int


class View:
    """``on_looked`` is called when everything that a look asked for is known."""

    def __init__(
        self,
        asking: Asking,
        group: str,
        subscription: Subscription,
        on_looked: Callable[[], None],
    ) -> None:
        self.members: dict[str, Subscription] = {}
        self.topics: dict[str, TopicFacts] = {}
        self.is_looking = False
        self._asking = asking
        self._group = group
        self._subscription = subscription
        self._on_looked = on_looked
        self._left = 0
        self._since: dict[str, int] = {}
        """When each member was registered, as ZooKeeper counts its changes."""
        self._members_left = 0
        self._unmet: list[tuple[str, Assignment, int]] = []
        """Topics that wait for the members to be known: name, value and when each was made."""
        self._was_there: set[str] = set()
        """Ids of the topics that the first look found and that are older than any member's
        subscription to them; others came later."""
        self._has_looked = False
        self._names = set(subscription.topics)
        self._stale_topics: set[str] = set()
        self._stale_members = self._stale_names = False
        self._paths = {znodes.topic_path(name): name for name in subscription.topics}
        self.mark_all()

    @property
    def is_stale(self) -> bool:
        return self._stale_members or self._stale_names or bool(self._stale_topics)

    def owners(self, *, without: str = "") -> dict[TopicPartition, Owner]:
        """Who is to own what, by this view; or was, ``without`` one of them."""
        counts = {name: facts.partition_count for name, facts in self.topics.items()}
        members = {name: row for name, row in self.members.items() if name != without}
        return assign(members, counts)

    def place_of(self, name: str) -> int:
        """How many of the members were registered before this one."""
        return sum(since < self._since[name] for since in self._since.values())

    # What is to be read again.

    def mark_all(self) -> None:
        self._stale_members = True
        self._stale_names = self._subscription.pattern is not None
        self._stale_topics = set(self._names)

    def mark(self, path: str) -> None:
        """A watch fired."""
        if path == znodes.consumers_path(self._group):
            self._stale_members = True
        elif path == znodes.TOPICS:
            self._stale_names = True
        elif path in self._paths:
            self._stale_topics.add(self._paths[path])

    def mark_topic(self, topic: str) -> None:
        """Its places in the registries are gone: make it ready again."""
        self.topics.pop(topic, None)
        self._stale_topics.add(topic)

    def forget(self) -> None:
        """The connection is lost: what was asked is not answered, and every watch is void."""
        self.is_looking = False
        self._left = self._members_left = 0
        self._unmet.clear()
        self.mark_all()

    # Looking.

    def look(self) -> None:
        """Read what is stale."""
        assert not self.is_looking
        self.is_looking = True
        self._left = 1
        if self._stale_members:
            self._stale_members = False
            self._left += 1
            self._members_left = 1
            self._asking.list(znodes.consumers_path(self._group), self._listed, watch=True)
        if self._stale_names:
            self._stale_names = False
            self._left += 1
            self._asking.list(znodes.TOPICS, self._named, watch=True)
        self._read_topics()
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.is_looking = False
            self._has_looked = True
            self._on_looked()

    def _listed(self, names: list[str] | None) -> None:
        found = names or []
        self.members = {name: self.members[name] for name in found if name in self.members}
        for name in found:
            if name not in self.members:
                self._members_left += 1
                path = znodes.consumer_path(self._group, name)
                self._asking.get(path, partial(self._member, name, path))
        self._one_member_less()

    def _member(self, name: str, path: str, znode: Znode | None) -> None:
        # One that is gone again has fired the watch of the list.
        if znode is not None:
            self._since[name] = znode.created_zxid
            try:
                self.members[name] = znodes.decode_subscription(path, znode.data)
            except UnsupportedVersionError:
                # Not ours, or of a later version: it gets nothing, and all others agree on that.
                self.members[name] = Subscription((), None, 0)
        self._one_member_less()

    def _one_member_less(self) -> None:
        self._members_left -= 1
        if self._members_left == 0:
            self._since = {name: self._since[name] for name in self.members}
            unmet, self._unmet = self._unmet, []
            for row in unmet:
                self._meet(*row)
            self._one_less()

    def _named(self, names: list[str] | None) -> None:
        matching = {name for name in names or () if covers(self._subscription, name)}
        for name in self._names - matching - set(self._subscription.topics):
            self.topics.pop(name, None)
        new = matching - self._names
        self._names = matching | set(self._subscription.topics)
        self._paths = {znodes.topic_path(name): name for name in self._names}
        self._stale_topics |= new
        self._read_topics()
        self._one_less()

    def _read_topics(self) -> None:
        for topic in sorted(self._stale_topics & self._names):
            self._left += 1
            self._asking.get(znodes.topic_path(topic), partial(self._topic, topic), watch=True)
        self._stale_topics.clear()

    def _topic(self, topic: str, znode: Znode | None) -> None:
        if znode is None:
            self.topics.pop(topic, None)
            self._one_less()
            return
        found = znodes.decode_assignment(znodes.topic_path(topic), znode.data)
        known = self.topics.get(topic)
        if known is not None and known.topic_id == found.topic_id:
            self.topics[topic] = known._replace(partition_count=len(found.replicas))
            self._one_less()
            return
        if self._members_left:
            self._unmet.append((topic, found, znode.created_zxid))
        else:
            self._meet(topic, found, znode.created_zxid)

    def _meet(self, topic: str, found: Assignment, created_zxid: int) -> None:
        """Remember a topic for the group, unless that does. One that was made since some member has
        been there for it came later, also for a consumer that joined before that member looked."""
        began = (self._since[name] for name, row in self.members.items() if covers(row, topic))
        if not self._has_looked and created_zxid < min(began, default=created_zxid + 1):
            self._was_there.add(found.topic_id)
        first = self._first(found, is_another=False)
        path = znodes.topic_offsets_path(self._group, topic)
        self._asking.write([Create(znodes.topic_owners_path(self._group, topic))], _either_way)
        self._asking.write([Create(path, znodes.encode_first_look(first))], _either_way)
        self._asking.get(path, partial(self._first_look, topic, found))

    def _first_look(self, topic: str, found: Assignment, znode: Znode | None) -> None:
        path = znodes.topic_offsets_path(self._group, topic)
        count = len(found.replicas)
        if znode is None:
            # The group is being deleted.
            self._again(topic, Refused(0, Create(path), "missing"))
            return
        known = znodes.decode_first_look(path, znode.data) if znode.data else None
        if known is not None and known.topic_id == found.topic_id:
            self._ready(topic, TopicFacts(found.topic_id, count, known.partition_count), None)
            return
        first = self._first(found, is_another=known is not None)
        facts = TopicFacts(found.topic_id, count, first.partition_count)
        write = Set(path, znodes.encode_first_look(first), znode.version)
        self._asking.write([write], partial(self._ready, topic, facts))

    def _first(self, found: Assignment, *, is_another: bool) -> FirstLook:
        """What the group is to remember of a topic that it has not met; ``is_another``: but one of
        the same name."""
        is_old = found.topic_id in self._was_there and not is_another
        return FirstLook(found.topic_id, len(found.replicas) if is_old else 0)

    def _ready(self, topic: str, facts: TopicFacts, refused: Refused | None) -> None:
        if refused is not None:
            self._again(topic, refused)
            return
        if topic in self._names:
            self.topics[topic] = facts
        self._one_less()

    def _again(self, topic: str, refused: Refused) -> None:
        self.topics.pop(topic, None)
        self._stale_topics.add(topic)
        self._one_less()


def _either_way(refused: Refused | None) -> None:
    """It is there now, or its parent is not, which the next read shows."""
