"""Batch bytes to rows or Arrow columns and back. No I/O, no clock. See FORMAT.md beside this file.

Reading order: ``format`` (layout), ``crc32c``, ``batch`` (the envelope, append checks), ``message``
(what columns declare), ``arrow`` (columns), ``records`` (rows, one by one), ``compression``,
``transcode`` with ``scan`` and ``varints`` (rows in arrays), ``row_times``. A broker that only
appends and sends needs no more than ``batch`` and ``message``, and neither numpy nor pyarrow.
"""
