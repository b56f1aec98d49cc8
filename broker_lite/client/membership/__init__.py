"""Members of Kafka groups: consumers that share partitions through a broker, the coordinator.

``assignors``: who reads what, pure functions. ``machine``: one consumer's membership as a state
machine without I/O, whose words are in ``events``; ``topics``: what it subscribes to and leads by;
``errors``: why a coordinator refuses; ``settings``: what of it users choose.
``member`` carries its effects out on the shell that the consumer fetches with. ``changes`` is what
both faces, ``consumer`` and ``aio_consumer``, do about it on the reader's side; ``beginning``:
where they begin to read what they were given, and how they commit. Read README.md first.
"""
