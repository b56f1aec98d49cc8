"""Tests of Kafka's compression codecs: compatibility with other codecs, decompression bombs."""

from __future__ import annotations

import os
import struct
import zlib

import aiokafka.codec as other
import cramjam
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_lite.errors import CorruptMessageError, UnsupportedCompressionTypeError
from broker_lite.record import format as fmt
from broker_lite.record.compression import compress, decompress

GZIP, SNAPPY, LZ4, ZSTD = fmt.CODEC_GZIP, fmt.CODEC_SNAPPY, fmt.CODEC_LZ4, fmt.CODEC_ZSTD
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)

ENCODERS = {
    GZIP: other.gzip_encode,
    SNAPPY: other.snappy_encode,
    LZ4: other.lz4_encode,
    ZSTD: other.zstd_encode,
}
DECODERS = {
    GZIP: other.gzip_decode,
    SNAPPY: other.snappy_decode,
    LZ4: other.lz4_decode,
    ZSTD: other.zstd_decode,
}
SAMPLES = [b"x", b"ab" * 1000, os.urandom(70_000), b"log line " * 30_000]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_logbus_and_other_implementations_decompress_each_others_data(
    codec: int, data: bytes
) -> None:
    assert bytes(DECODERS[codec](compress(codec, data))) == data
    assert bytes(decompress(codec, ENCODERS[codec](data))) == data


@pytest.mark.parametrize("codec", (fmt.CODEC_NONE, *CODECS))
@given(data=st.binary(max_size=3000), times=st.integers(1, 50))
@settings(max_examples=40)
def test_data_are_unchanged_after_compression_and_decompression(
    codec: int, data: bytes, times: int
) -> None:
    plain = data * times
    for buffer in (plain, bytearray(plain), memoryview(plain)):
        packed = compress(codec, buffer)
        assert bytes(decompress(codec, packed)) == plain
        assert bytes(decompress(codec, packed, len(plain))) == plain


def test_snappy_without_javas_framing_is_decompressed() -> None:
    data = b"librdkafka frames nothing " * 4000
    assert bytes(decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data


def test_gzip_of_several_members_is_decompressed() -> None:
    assert decompress(GZIP, compress(GZIP, b"one ") + compress(GZIP, b"two")) == b"one two"


def test_lz4_frames_have_independent_blocks() -> None:
    frame = compress(LZ4, b"line " * 100_000)
    magic, flags = struct.unpack_from("<IB", frame)
    assert magic == 0x184D2204
    assert flags & 0x20, "Kafka's Java reader refuses dependent blocks"


def test_lz4_of_dependent_blocks_is_decompressed() -> None:
    data = b"line " * 100_000
    frame = pa.Codec("lz4").compress(data, asbytes=True)
    assert bytes(decompress(LZ4, frame)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_stops_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(32 << 20))
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptMessageError, match="grow beyond 1000000 bytes"):
        decompress(codec, bomb, 1_000_000)
    assert pa.total_allocated_bytes() <= before + (2 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_data_of_exactly_the_limit_are_decompressed(codec: int) -> None:
    packed = compress(codec, bytes(100_000))
    assert len(decompress(codec, packed, 100_000)) == 100_000
    with pytest.raises(CorruptMessageError):
        decompress(codec, packed, 99_999)


def test_zstd_frame_with_a_declared_size_above_the_limit_is_refused() -> None:
    bomb = pa.Codec("zstd").compress(bytes(64 << 20), asbytes=True)
    with pytest.raises(CorruptMessageError, match="grow beyond"):
        decompress(ZSTD, bomb, 1 << 20)


def test_snappy_block_with_a_wrong_length_is_refused() -> None:
    # The varint declares 2^32 - 1 bytes, but the block has only one.
    with pytest.raises(CorruptMessageError, match="grow beyond"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f\x00")
    with pytest.raises(CorruptMessageError):
        decompress(SNAPPY, b"\x64\x00a")
    with pytest.raises(CorruptMessageError):
        decompress(SNAPPY, b"\xff\xff\xff\xff\xff\xff")


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_data_are_corrupt_in_every_codec(codec: int) -> None:
    packed = compress(codec, os.urandom(500))
    whole_without_blocks = (SNAPPY, 16)
    for cut in range(len(packed)):
        if (codec, cut) != whole_without_blocks:
            with pytest.raises(CorruptMessageError):
                decompress(codec, packed[:cut], 1 << 20)
    with pytest.raises(CorruptMessageError):
        decompress(codec, b"\x01\x02\x03garbage that no codec wrote")


def test_truncated_gzip_member_is_corrupt() -> None:
    packed = compress(GZIP, b"x" * 10_000)
    for cut in (0, 1, 10, len(packed) - 1):
        with pytest.raises(CorruptMessageError):
            decompress(GZIP, packed[:cut])
    assert zlib.decompress(packed, 31) == b"x" * 10_000


@pytest.mark.parametrize("codec", (5, 6, 7))
def test_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionTypeError):
        decompress(codec, b"x")
    with pytest.raises(UnsupportedCompressionTypeError):
        compress(codec, b"x")
