"""Readers of partitions: consumers without group membership, and the readers that Spark uses.

- ``consumer``, ``aio_consumer``: the blocking and the asyncio consumer
- ``fetching``, ``source``: the fetch engine and its partitions
- ``intake``: decoding and positions, on the reader's thread
- ``starting``: starting offsets
- ``partition_discovery``, ``deleted_topics``: partitions that are created or deleted
- ``ends``: end offsets, for Spark
"""
