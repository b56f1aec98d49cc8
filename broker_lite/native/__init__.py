"""Native groups: consumers that share partitions through ZooKeeper, without a coordinator.

- ``assignment``: the range assignment
- ``machine`` with ``view`` and ``ownership``: one consumer of a group as a state machine
- ``events``, ``pending_requests``: the events, effects and requests of the machine
- ``member``: carries out the effects on an event loop
- ``session``: runs a member for the readers of one consumer
- ``membership``: implements the reader core's interface to a group
- ``streams``: the entry points

``Bus`` loads the package only for ``coordination="zookeeper"``. Read README.md first.
"""
