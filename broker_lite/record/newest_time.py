"""Set the maximum timestamp in the header of a batch of rows, if the producer did not set it.

Producers with the Go library sarama before 1.46 do not set it. Like Kafka's broker, logbus then
computes it from the records. This decompresses the batch and takes up to 0.5 µs a record, so it
must not run on a thread that appends to logs. A small batch can decompress to far more than its
size; ``BODY_BYTES_MIN``, ``BODY_RATIO`` and ``fmt.BROKER_DECOMPRESSED_BYTES_MAX`` limit the
decompressed size."""

from __future__ import annotations

import struct

from broker_lite.errors import CorruptMessageError, InvalidRecordError
from broker_lite.record import format as fmt
from broker_lite.record.batch import check_crc, read_header, set_max_timestamp

BODY_BYTES_MIN = 1 << 20
"""Decompressed bytes up to which a batch may have any compression ratio. The batches of sarama,
which sends no maximum timestamp, are by default smaller."""
BODY_RATIO = 16
"""Maximum ratio of decompressed to compressed size for a batch that decompresses to more than
``BODY_BYTES_MIN``. The broker refuses a batch with a higher ratio."""
_MAGIC_AT = 16
_BASE_AND_MAX = struct.Struct(">qq")
_BASE_AND_MAX_AT = 27


def is_left_out(records: memoryview) -> bool:
    """Return whether the producer did not set the maximum timestamp of the first batch in
    ``records``: then it is below the batch's base timestamp."""
    if len(records) < fmt.HEADER_BYTES or records[_MAGIC_AT] != fmt.MAGIC_ROWS:
        return False
    base, newest = _BASE_AND_MAX.unpack_from(records, _BASE_AND_MAX_AT)
    return bool(newest < base)


def fill_in(records: memoryview) -> None:
    """Write the maximum timestamp and the new CRC into the one batch in ``records``.

    A batch that the log's append will refuse, such as a control batch, is left unchanged. Raises
    InvalidRecordError if the records cannot be decoded, and CorruptMessageError if the CRC or the
    length of the batch is wrong."""
    # Import here: transcode loads numpy and pyarrow, which a broker needs only for a batch without
    # a maximum timestamp.
    from broker_lite.record.transcode import newest_timestamp

    header = read_header(records)
    check_crc(records, header)
    count_fits = 0 < header.record_count <= fmt.RECORDS_MAX
    if len(records) > header.size_bytes or header.is_control or not count_fits:
        # Leave the batch unchanged: the append that follows refuses the batch and gives the reason.
        return
    limit = max(BODY_BYTES_MIN, BODY_RATIO * len(records))
    limit = min(limit, fmt.BROKER_DECOMPRESSED_BYTES_MAX)
    try:
        newest = newest_timestamp(records, header, limit)
    except CorruptMessageError as error:
        # The CRC is correct, so the producer itself encoded the batch wrongly, and sending it again
        # would not help. CorruptMessageError would make the producer send it again.
        raise InvalidRecordError(
            f"a batch of {len(records)} bytes has no maximum timestamp, and its records cannot be "
            f"decoded to find it: {error.message}; use a client that writes it (sarama from 1.46)"
        ) from None
    set_max_timestamp(records, header, newest)
