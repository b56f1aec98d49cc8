"""Convert batches of records between their bytes, rows and Arrow columns.

The records of a batch are stored either one after the other, as in Kafka (a batch of rows), or by
column in Arrow's format (a batch of columns). FORMAT.md describes the bytes. To transcode a batch
means to convert it from one kind to the other.

Read the modules in this order: ``format`` (layout), ``crc32c``, ``batch`` (the header, and the
checks before an append), ``message`` (checks of Arrow's metadata), ``arrow`` (columns), ``records``
(keys and values of rows, one by one), ``compression``, ``transcode`` with ``scan`` and ``varints``
(rows, many at once), ``row_times``. A broker that does not transcode imports only ``batch`` and
``message``, which need neither numpy nor pyarrow. The package does no I/O and reads no clock. Any
thread may call its functions."""
