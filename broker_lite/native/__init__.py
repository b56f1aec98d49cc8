"""Native groups: consumers that share partitions through ZooKeeper, without a coordinator.

``assignment`` is the range algorithm, a pure function. ``machine`` with ``view`` and ``ownership``
is one consumer as a state machine; ``events`` has its events and effects. ``member`` carries the
effects out on an event loop. ``consumer`` and ``aio_consumer`` are the faces. The package is loaded
only for ``coordination="zookeeper"``. Read README.md first.
"""
