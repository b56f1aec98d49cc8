"""The producer. A record passes through these modules in this order:

- ``producer`` (``send``) appends the record to open rows of the ``accumulator``.
- ``sender``, the engine, splits the rows by key (``partitioner``) into ``batches``.
- ``delivery`` orders, numbers and retries batches, with a ``partition_queue`` for each partition.
- ``futures`` report the acknowledgement to the caller.

The engine has no thread and no socket of its own, so ``aio_producer`` runs it on an event loop.
"""
