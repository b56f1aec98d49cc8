"""Native groups: consumers that share partitions among themselves, through ZooKeeper, masterless.

``assignment``: who reads what, a pure function. ``machine`` with ``view`` and ``holdings``: one
consumer as a state machine without I/O, whose words are in ``events``. ``member`` carries its
effects out over the metadata store, on an event loop. ``consumer`` and ``aio_consumer``: the two
faces. Loaded only where ``coordination="zookeeper"`` is asked for. Read README.md first.
"""
