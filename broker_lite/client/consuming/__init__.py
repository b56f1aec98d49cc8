"""Readers of partitions: consumers without group membership, and the readers that Spark uses.

- ``consumer``, ``aio_consumer``: the blocking and the asyncio consumer
- ``fetching``, ``source``, ``lineage``: the fetch engine, its partitions, their leader epochs
- ``intake``: decoding and positions, on the reader's thread
- ``starting``: starting offsets
- ``partition_discovery``, ``deleted_topics``: partitions that are created or deleted
- ``fetcher``, ``first_answers``, ``ends``: offset ranges and end offsets, for Spark
"""
