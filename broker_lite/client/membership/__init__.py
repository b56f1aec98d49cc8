"""Members of Kafka groups: consumers that share partitions through a broker, the coordinator.

``assignors``: who reads what, pure functions. ``machine``: one consumer's membership as a state
machine without I/O, whose words are in ``events``. ``member`` carries its effects out on the
shell that the consumer fetches with. ``changes`` is what both faces do about it on the reader's
side: ``consumer`` and ``aio_consumer``. Read README.md first.
"""
