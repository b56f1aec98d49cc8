"""Readers of partitions: consumers, alone or in a group.

- ``reader_core``: the reader of every consumer, as tasks that yield their ``waits``
- ``consumer``, ``aio_consumer``: the drivers of these tasks, blocking and asyncio; ``face`` is
  their base class
- ``membership``: the interface to a group, which assigns and revokes partitions
- ``no_membership``: the implementation of that interface for a consumer that reads alone
- ``changes``, ``assignment``: the changes of an assignment, and their queue
- ``fetch_collector``: decoding and positions, on the reader's thread
- ``starting``: the lookup of starting offsets
- ``partition_discovery``, ``deleted_topics``: the handling of created and deleted partitions
"""
