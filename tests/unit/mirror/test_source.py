"""Tests of a mirror's source: the error if the source does not answer, and its list of groups."""

from __future__ import annotations

import pytest

from broker_lite.cli.context import name_pattern
from broker_lite.client.administration.admin import Admin, GroupListing
from broker_lite.errors import SourceUnreachableError
from broker_lite.mirror.source import MirrorSource
from broker_lite.model import CommittedOffset, TopicPartition


def test_unreachable_source_error_says_what_to_check() -> None:
    source = MirrorSource("127.0.0.1:1", "test")
    source.admin = Admin("127.0.0.1:1", client_id="test", timeout_ms=1)
    with pytest.raises(SourceUnreachableError, match=r"--from 127.0.0.1:1 .*check the address"):
        source.check_versions()
    source.close()


def test_group_with_a_line_end_in_its_name_matches_the_pattern_of_all_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: ``logbus groups list`` did not list the group, and a mirror did not copy it."""
    name, offsets = "a\nb", {TopicPartition("t", 0): CommittedOffset(5)}
    assert name_pattern(None).fullmatch(name)
    source = MirrorSource("127.0.0.1:1", "test")
    listed = [GroupListing(name, "Empty", "", "")]
    monkeypatch.setattr(source.admin, "list_groups", lambda **_: listed)
    monkeypatch.setattr(source.admin, "committed", lambda _: offsets)
    assert list(source.groups(".*")) == [(name, offsets)]
    source.close()
