"""Readers of partitions without group membership.

- ``consumer``, ``aio_consumer``: the blocking and the asyncio consumer
- ``intake``: decoding and positions, on the reader's thread
- ``starting``: starting offsets
- ``partition_discovery``, ``deleted_topics``: partitions that are created or deleted
"""
