"""Tests of the forms in which users give a position in a log."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.log_positions import PositionSpec, parse
from broker_lite.errors import InvalidRequestError

NOW = 1_763_700_000_000


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("earliest", PositionSpec("after_earliest", 0)),
        ("beginning", PositionSpec("after_earliest", 0)),
        ("latest", PositionSpec("before_latest", 0)),
        ("end", PositionSpec("before_latest", 0)),
        ("0", PositionSpec("offset", 0)),
        ("42", PositionSpec("offset", 42)),
        ("+10", PositionSpec("after_earliest", 10)),
        ("-10", PositionSpec("before_latest", 10)),
        ("@-90s", PositionSpec("time", NOW - 90_000)),
        ("@-2h", PositionSpec("time", NOW - 7_200_000)),
        ("@-7d", PositionSpec("time", NOW - 604_800_000)),
        ("@1763632800000", PositionSpec("time", 1_763_632_800_000)),
        ("@-900000d", PositionSpec("time", 0)),
        ("@1969-12-31T23:59:59.998Z", PositionSpec("time", 0)),
        ("@2025-11-20", PositionSpec("time", 1_763_596_800_000)),
        ("@2025-11-20T10:00:00Z", PositionSpec("time", 1_763_632_800_000)),
        ("@2025-11-20T12:00:00+02:00", PositionSpec("time", 1_763_632_800_000)),
    ],
)
def test_every_form_of_a_log_position_is_parsed(text: str, spec: PositionSpec) -> None:
    assert parse(text, NOW) == spec


@pytest.mark.parametrize(
    "text", ["", "newest", "@", "@yesterday", "1.5", "+-3", "@-1w", "--5", "²", "9" * 19]
)
def test_invalid_offset_error_lists_valid_forms(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="give earliest, latest"):
        parse(text, NOW)
