"""Native groups: consumers that share partitions through ZooKeeper, without a coordinator.

``assignment`` is the range algorithm, a pure function. ``machine`` with ``view`` and ``ownership``
is one consumer as a state machine; ``events`` has its events and effects. ``member`` carries the
effects out on an event loop, and ``session`` runs it for the readers of one consumer.
``membership`` implements the port of the reader core; ``streams`` has the entry points. The package
is loaded only for ``coordination="zookeeper"``. Read README.md first.
"""
