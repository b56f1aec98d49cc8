"""Constants of a batch: layout of its header, attribute bits and limits. FORMAT.md explains them.

The header has 61 bytes, big-endian, as in Kafka's record batch v2. The CRC does not cover the first
21 bytes, so that a leader can write base offset and leader epoch without computing the CRC again. A
"delta" is a difference from a value in the header: a record's offset is the base offset plus its
offset delta."""

from __future__ import annotations

import struct

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Layout of the header: base offset, batch length, leader epoch, magic, crc, attributes, last
offset delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record
count."""

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12
"""Bytes of the fields base offset and batch length, which the batch length does not count. A batch
has ``12 + batch length`` bytes."""

STAMP = struct.Struct(">qii")
"""Layout of the first 16 bytes of a batch, which the leader overwrites when it appends the batch:
base offset, batch length (which stays the same), leader epoch."""

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

# In a batch of columns, the header is followed by a preamble (11 bytes) and one Arrow IPC record
# batch message.
PREAMBLE = struct.Struct(">BHII")
"""Layout of the preamble, which follows the header in a batch of columns: body version, flags
(``FLAG_*``, the columns that are present), schema id, reserved (zero)."""
PREAMBLE_BYTES = 11
COLUMNS_FROM = HEADER_BYTES + PREAMBLE_BYTES
"""Position of the Arrow message in a batch: 72, a multiple of 8, as Arrow's alignment requires."""
BODY_VERSION = 1
SCHEMA_KAFKA_ROW = 0
"""The only schema id so far, with the columns key, value, timestamp and headers."""
FLAG_KEY = 1 << 0
FLAG_VALUE = 1 << 1
FLAG_TIMESTAMP = 1 << 2
FLAG_HEADERS = 1 << 3
FLAG_OFFSET_DELTAS = 1 << 4
"""Flag of a column of offset deltas (int32), for batches whose offsets have gaps. No client may
send such a batch; the column is reserved for compaction."""
FLAGS_KNOWN = (1 << 5) - 1

BATCH_BYTES_MAX = 64 << 20
"""Maximum bytes of any batch. Topics set a lower limit (``max.message.bytes``)."""
BROKER_DECOMPRESSED_BYTES_MAX = 64 << 20
"""Maximum decompressed bytes of a batch of rows that a broker decompresses.

The limit is lower than for clients, because several threads may decompress at the same time."""
DECOMPRESSED_BYTES_MAX = 512 << 20
"""Maximum decompressed bytes of a batch of rows. Readers check it before they allocate memory."""
COLUMNS_BYTES_MAX = BATCH_BYTES_MAX
"""Maximum decompressed bytes of a batch of columns. Readers check it before they allocate memory.

For a client that reads only rows, the broker converts the columns to a batch of rows of about this
size, which must not exceed ``BATCH_BYTES_MAX``."""
RECORDS_MAX = 4 << 20
"""Maximum records in one batch."""
