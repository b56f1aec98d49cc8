"""The maximum timestamp of a batch of rows whose producer left it out, as sarama before 1.46 does.

Kafka's broker reads it from the records, and so does logbus. That takes decompressing the batch and
finding its records: up to 0.5 us a record, so never on a thread that appends. A small batch could
decompress to much more than it costs to send: the size is bounded. Pure, any thread.
"""

from __future__ import annotations

import struct

from broker_lite.errors import CorruptMessageError, InvalidRecordError
from broker_lite.record import format as fmt
from broker_lite.record.batch import check_crc, read_header, set_max_timestamp

BODY_BYTES_MIN = 1 << 20
"""A batch may always decompress to so much: more than sarama puts into a batch by default."""
BODY_RATIO = 16
"""A larger batch may decompress to so many times its size."""
_MAGIC_AT = 16
_BASE_AND_MAX = struct.Struct(">qq")
_BASE_AND_MAX_AT = 27


def is_left_out(records: memoryview) -> bool:
    """Whether ``records`` begins with a batch of rows without a maximum timestamp."""
    if len(records) < fmt.HEADER_BYTES or records[_MAGIC_AT] != fmt.MAGIC_ROWS:
        return False
    base, newest = _BASE_AND_MAX.unpack_from(records, _BASE_AND_MAX_AT)
    return bool(newest < base)


def fill_in(records: memoryview) -> None:
    """Write the maximum timestamp, and the CRC that it makes, into the one batch in ``records``.

    Raises InvalidRecordError if the records cannot be read, and CorruptMessageError, as appending
    the batch would, if its CRC or its length is wrong.
    """
    # Loads numpy and pyarrow, which a broker does without until such a batch comes.
    from broker_lite.record.transcode import newest_timestamp

    header = read_header(records)
    check_crc(records, header)
    count_fits = 0 < header.record_count <= fmt.RECORDS_MAX
    if len(records) > header.size_bytes or header.is_control or not count_fits:
        return  # the append refuses it, with the reason
    limit = max(BODY_BYTES_MIN, BODY_RATIO * len(records))
    try:
        newest = newest_timestamp(records, header, limit)
    except CorruptMessageError as error:
        # The CRC is right, so the producer wrote it so: to send it again would not help.
        raise InvalidRecordError(
            f"a batch of {len(records)} bytes has no maximum timestamp, and its records cannot be "
            f"read for it: {error.message}; use a client that writes it (sarama from 1.46)"
        ) from None
    set_max_timestamp(records, header, newest)
