"""Readers of partitions: consumers, alone or in a group.

- ``reader_core``: the reader inside every consumer. Its methods are tasks: generators that, to
  wait for an event, yield an object of ``waits``.
- ``consumer``, ``aio_consumer``: the blocking and the asyncio consumer, which run these tasks;
  ``face`` is their base class
- ``membership``: the interface to a group, which assigns and revokes partitions
- ``no_membership``: that interface for a consumer that reads alone
- ``changes``, ``assignment``: the changes of a consumer's assignment, and their queue
- ``fetch_collector``: decoding of fetched batches, and the consumer's positions
- ``starting``: the lookup of starting offsets
- ``partition_discovery``, ``deleted_topics``: the handling of created and deleted partitions"""
