"""Readers of partitions: consumers, alone or in a group.

- ``reader_core``: the reader of every consumer, as tasks that yield their ``waits``
- ``consumer``, ``aio_consumer``: the drivers of these tasks, blocking and asyncio; ``face`` is
  their base
- ``membership``: the port to a group, which assigns, revokes and loses partitions (``changes``,
  ``assignment``); ``no_membership`` reads alone
- ``fetch_collector``: decoding and positions, on the reader's thread
- ``starting``: starting offsets
- ``partition_discovery``, ``deleted_topics``: partitions that are created or deleted
"""
