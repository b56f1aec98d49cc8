"""Readers of partitions: consumers, alone or in a group.

- ``reader_core``: the reader of every consumer, as tasks that yield their ``waits``
- ``consumer``, ``aio_consumer``: the drivers of these tasks, blocking and asyncio; ``face`` is
  their base
- ``membership``: the port to a group, which assigns and revokes partitions; ``no_membership`` is
  the port of a consumer that reads alone
- ``changes``, ``assignment``: the changes of an assignment, and their queue
- ``fetch_collector``: decoding and positions, on the reader's thread
- ``starting``: the lookup of starting offsets
- ``partition_discovery``, ``deleted_topics``: partitions that are created or deleted
"""
