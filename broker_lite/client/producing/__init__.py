"""The producer, in the order of a record.

``producer`` (the face, and ``send``) puts it into open rows of the ``accumulator``; ``sender``, the
engine, has them split by key (``partitioner``) into ``batches``, which ``delivery`` keeps in order
(a ``partition_queue`` each), numbers and tries again until they are answered in ``futures``. The
engine has no thread and no socket: the asyncio face, ``client.aio``, runs it too.
"""
