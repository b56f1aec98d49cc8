"""Tests of the CRC-32C against published values and crcmod, with and without the package
google-crc32c."""

from __future__ import annotations

import importlib.util
import random
import sys
from types import ModuleType

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.record import crc32c as module
from broker_lite.record.crc32c import crc32c

oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the module as if the package google-crc32c were not installed."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location("crc32c_without_wheel", module.__file__)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_checksum_of_the_published_vector_is_correct() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_google_crc32c_is_used_if_installed() -> None:
    assert module.IMPLEMENTATION == "google-crc32c"


@given(st.binary(max_size=5000), st.integers(0, 5000))
def test_crc32c_of_one_or_two_parts_equals_the_result_of_crcmod(data: bytes, cut: int) -> None:
    assert crc32c(data) == oracle(data)
    assert crc32c(data[cut:], crc32c(data[:cut])) == oracle(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_checksum_accepts_every_kind_of_buffer_and_slice(kind: type) -> None:
    data = bytes(range(256)) * 5
    view = memoryview(kind(data))
    assert crc32c(kind(data)) == oracle(data)
    assert crc32c(view[21:]) == oracle(data[21:])
    assert crc32c(memoryview(bytearray(data))[3:777]) == oracle(data[3:777])


@pytest.mark.parametrize("size", [(64 << 10) - 1, 64 << 10, (64 << 10) + 1, 200_000])
def test_checksum_of_buffers_that_are_copied_in_pieces_is_correct(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for buffer in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
        assert crc32c(buffer) == oracle(data)
        assert crc32c(memoryview(buffer)[3:], crc32c(data[:3])) == oracle(data)


def test_crcmod_is_used_without_google_crc32c(without_wheel: ModuleType) -> None:
    assert without_wheel.IMPLEMENTATION == "crcmod"
    for data in (b"", b"123456789", bytearray(b"x" * 1000), memoryview(bytearray(b"y" * 77))[5:]):
        assert without_wheel.crc32c(data) == crc32c(data)
    assert without_wheel.crc32c(b"456789", without_wheel.crc32c(b"123")) == 0xE3069283
