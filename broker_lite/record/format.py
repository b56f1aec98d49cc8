"""Constants of a batch: header layout, attribute bits and limits. FORMAT.md explains them.

The header has 61 bytes, big-endian, as in Kafka's record batch v2. The CRC does not cover the first
21 bytes, so that a leader can stamp base offset and leader epoch without computing the CRC again.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Layout of the header: base offset, batch length, leader epoch, magic, crc, attributes, last
offset delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record
count
"""

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12
"""Bytes of the fields base offset and batch length. A batch takes ``12 + batch length`` bytes."""

STAMP = struct.Struct(">qii")
"""The fields that the leader writes: base offset, batch length (unchanged), leader epoch."""

POSITION_MAGIC = 16
POSITION_CRC = 17
CRC_FROM = 21

MAGIC_ROWS = 2
MAGIC_COLUMNS = 0x41
MAGICS = (MAGIC_ROWS, MAGIC_COLUMNS)

CODEC_MASK = 0x07
CODEC_NONE, CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD = range(5)
ATTRIBUTE_LOG_APPEND_TIME = 1 << 3
ATTRIBUTE_TRANSACTIONAL = 1 << 4
ATTRIBUTE_CONTROL = 1 << 5
ATTRIBUTE_DELETE_HORIZON = 1 << 6
ATTRIBUTES_OF_TRANSACTIONS = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL

# In a column batch, a preamble follows the header, then one Arrow IPC record batch message.
PREAMBLE = struct.Struct(">BHII")
"""Layout of the preamble: body version, flags, schema id, reserved (zero)."""
PREAMBLE_BYTES = 11
COLUMNS_FROM = HEADER_BYTES + PREAMBLE_BYTES
"""Position of the Arrow message in a batch: 72, a multiple of 8, as Arrow's alignment requires."""
BODY_VERSION = 1
SCHEMA_KAFKA_ROW = 0
"""The only schema id so far: key, value, timestamp, headers."""
FLAG_KEY = 1 << 0
FLAG_VALUE = 1 << 1
FLAG_TIMESTAMP = 1 << 2
FLAG_HEADERS = 1 << 3
FLAG_OFFSET_DELTAS = 1 << 4
"""Flag of an int32 column of offset deltas, which is reserved for compaction."""
FLAGS_KNOWN = (1 << 5) - 1

BATCH_BYTES_MAX = 64 << 20
"""Maximum bytes of any batch. Topics set a lower limit (``max.message.bytes``)."""
DECOMPRESSED_BYTES_MAX = 512 << 20
"""Maximum decompressed bytes of a batch of rows, checked before any allocation."""
COLUMNS_BYTES_MAX = BATCH_BYTES_MAX
"""Maximum decompressed bytes of a batch of columns, checked before any allocation. For a client
that reads only rows, the broker converts the columns to one batch of rows of about this size."""
RECORDS_MAX = 4 << 20
"""Maximum records in one batch."""
