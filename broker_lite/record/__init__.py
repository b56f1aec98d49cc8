"""Convert the bytes of batches to rows or Arrow columns and back. FORMAT.md describes the bytes.

Read the modules in this order: ``format`` (layout), ``crc32c``, ``batch`` (header, append checks),
``message`` (declared sizes of columns), ``arrow`` (columns), ``records`` (rows, one by one),
``compression``, ``transcode`` with ``scan`` and ``varints`` (rows in arrays), ``row_times``. A
broker that does not transcode imports only ``batch`` and ``message``, without numpy and pyarrow.
The package does no I/O and reads no clock. Any thread may call its functions.
"""
