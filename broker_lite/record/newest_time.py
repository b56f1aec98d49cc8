"""Fill in the maximum timestamp of a batch of rows whose producer did not set it.

Producers with sarama before 1.46 leave the field out. Like Kafka's broker, logbus then computes the
timestamp from the records. The computation decompresses the batch and takes up to 0.5 µs a record,
so an append thread must never run it. A small batch can decompress to far more than its size;
``BODY_BYTES_MIN`` and ``BODY_RATIO`` limit the decompressed size.
"""

from __future__ import annotations

import struct

from broker_lite.errors import CorruptMessageError, InvalidRecordError
from broker_lite.record import format as fmt
from broker_lite.record.batch import check_crc, read_header, set_max_timestamp

BODY_BYTES_MIN = 1 << 20
"""Decompressed bytes that every batch may have, whatever its compressed size. By default, sarama
sends smaller batches."""
BODY_RATIO = 16
"""A batch that decompresses to more than BODY_BYTES_MIN may have at most this many times its
compressed size."""
_MAGIC_AT = 16
_BASE_AND_MAX = struct.Struct(">qq")
_BASE_AND_MAX_AT = 27


def is_left_out(records: memoryview) -> bool:
    """Return whether the first batch in ``records`` lacks its maximum timestamp. Such a batch has
    a maximum timestamp below its base timestamp.
    """
    if len(records) < fmt.HEADER_BYTES or records[_MAGIC_AT] != fmt.MAGIC_ROWS:
        return False
    base, newest = _BASE_AND_MAX.unpack_from(records, _BASE_AND_MAX_AT)
    return bool(newest < base)


def fill_in(records: memoryview) -> None:
    """Write the maximum timestamp and the new CRC into the one batch in ``records``.

    Raises InvalidRecordError if the records cannot be decoded, and CorruptMessageError if the CRC
    or the length of the batch is wrong.
    """
    # Import here: transcode loads numpy and pyarrow, which a broker needs only for such a batch.
    from broker_lite.record.transcode import newest_timestamp

    header = read_header(records)
    check_crc(records, header)
    count_fits = 0 < header.record_count <= fmt.RECORDS_MAX
    if len(records) > header.size_bytes or header.is_control or not count_fits:
        return  # Do nothing: the append refuses the batch and gives the reason.
    limit = max(BODY_BYTES_MIN, BODY_RATIO * len(records))
    try:
        newest = newest_timestamp(records, header, limit)
    except CorruptMessageError as error:
        # The CRC is correct, so the producer encoded the batch this way: a retry would not help.
        raise InvalidRecordError(
            f"a batch of {len(records)} bytes has no maximum timestamp, and its records cannot be "
            f"read for it: {error.message}; use a client that writes it (sarama from 1.46)"
        ) from None
    set_max_timestamp(records, header, newest)
