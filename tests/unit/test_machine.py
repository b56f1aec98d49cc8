"""Tests of the machine id, by which a client tells whether a broker runs on the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_lite import machine
from broker_lite.machine import machine_id


def test_machine_id_is_the_kernels_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def known(text: str | None) -> bytes:
        path = tmp_path / "boot_id"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(machine, "_BOOT_ID", path)
        machine_id.cache_clear()
        return machine_id()

    try:
        assert known("00010203-0405-0607-0809-0a0b0c0d0e0f\n") == bytes(range(16))
        assert known(None) == known("0001") == known("not hexadecimal") == b""
    finally:
        monkeypatch.undo()
        machine_id.cache_clear()
