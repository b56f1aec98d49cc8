"""Tests of the error of a mirror whose source cluster does not answer."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.admin import Admin
from broker_lite.errors import SourceUnreachableError
from broker_lite.mirror.source import MirrorSource


def test_unreachable_source_error_says_what_to_check() -> None:
    source = MirrorSource("127.0.0.1:1", "test")
    source.admin = Admin("127.0.0.1:1", client_id="test", timeout_ms=1)
    with pytest.raises(SourceUnreachableError, match=r"--from 127.0.0.1:1 .*check the address"):
        source.check_versions()
    source.close()
