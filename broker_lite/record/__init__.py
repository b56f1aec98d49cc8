"""Batch bytes to rows or Arrow columns and back. No I/O, no clock. See FORMAT.md beside this file.

Reading order: ``format`` (layout), ``crc32c``, ``batch`` (the envelope), ``records`` (rows),
``arrow`` (columns; the only module that imports pyarrow), ``compression``, ``transcode``.
"""
