"""The producer. A record passes through these modules in this order:

- ``producer`` (``send``) appends the record to its topic's open rows (``accumulator``): rows that
  are not in batches yet.
- ``sender``, the producer's engine, splits open rows by partition (``partitioner``) into
  ``batches``.
- ``delivery`` orders, numbers and retries batches, with a ``partition_queue`` for each partition.
- ``futures`` report the acknowledgement to the caller.

The engine has no thread and no socket of its own. ``producer`` runs it on a background thread,
``aio_producer`` on an event loop."""
