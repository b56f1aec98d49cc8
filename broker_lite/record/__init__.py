"""Conversion of batch bytes to rows or Arrow columns and back. No I/O, no clock. See FORMAT.md.

Reading order: ``format`` (layout), ``crc32c``, ``batch`` (header, append checks), ``message``
(declared sizes of columns), ``arrow`` (columns), ``records`` (rows, one by one), ``compression``,
``transcode`` with ``scan`` and ``varints`` (rows in arrays), ``row_times``. A broker that does not
transcode needs only ``batch`` and ``message``, without numpy and pyarrow.
"""
