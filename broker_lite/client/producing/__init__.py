"""The producer. A record passes these modules in this order:

``producer`` (``send``) appends the record to open rows of the ``accumulator``. ``sender``, the
engine, splits the rows by key (``partitioner``) into ``batches``. ``delivery`` orders, numbers and
retries batches, with one ``partition_queue`` per partition. ``futures`` report the acknowledgement.

The engine has no thread and no socket of its own: ``aio_producer`` runs it on an event loop.
"""
