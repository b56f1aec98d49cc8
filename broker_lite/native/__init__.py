"""Native groups: consumers that share partitions through ZooKeeper, without a coordinator.

A consumer of a native group has one or several streams, each read by a thread of its own. It claims
its partitions by creating a znode for each, and commits offsets to ZooKeeper.

- ``assignment``: the range assignment
- ``machine`` with ``view`` and ``ownership``: one consumer of a group as a state machine without
  I/O. It receives events, such as ZooKeeper's answer, and returns effects, such as a write.
- ``events``, ``pending_requests``: the events, effects and requests of the machine
- ``member``: runs the machine on an event loop, and carries out its effects
- ``session``: runs a member for all streams of one consumer
- ``membership``: implements the interface between a stream's reader and the group
- ``streams``: the entry points

``Bus`` loads the package only for ``coordination="zookeeper"``. Read README.md first."""
