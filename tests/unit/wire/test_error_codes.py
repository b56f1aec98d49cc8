"""Tests of error codes: those that clients of older API versions know, and their texts."""

from __future__ import annotations

import pytest

from broker_lite.errors import (
    ConcurrentTransactionsError,
    ProducerFencedError,
    TransactionAbortableError,
    WriteConflictError,
    error_for,
)
from broker_lite.wire.error_codes import code_in_version


@pytest.mark.parametrize(
    ("key", "version", "code"),
    [
        (22, 3, 47),
        (22, 4, 90),
        (24, 1, 47),
        (24, 2, 90),
        (25, 1, 47),
        (26, 1, 47),
        (26, 2, 90),
        (0, 13, 47),
        (28, 5, 47),
    ],
)
def test_older_api_versions_get_invalid_producer_epoch_for_producer_fenced(
    key: int, version: int, code: int
) -> None:
    assert code_in_version(ProducerFencedError(), key, version) == code


@pytest.mark.parametrize(
    ("key", "version", "code"),
    [
        (0, 10, 48),
        (0, 11, 120),
        (22, 4, 48),
        (24, 4, 48),
        (24, 5, 120),
        (25, 3, 48),
        (25, 4, 120),
        (26, 3, 48),
        (26, 4, 120),
        (28, 3, 48),
        (28, 4, 120),
    ],
)
def test_transaction_abortable_becomes_invalid_txn_state_in_older_api_versions(
    key: int, version: int, code: int
) -> None:
    assert code_in_version(TransactionAbortableError(), key, version) == code


def test_error_code_that_exists_in_every_api_version_is_sent_unchanged() -> None:
    assert code_in_version(ConcurrentTransactionsError(), 26, 0) == 51
    assert code_in_version(WriteConflictError(), 26, 0) == 15


@pytest.mark.parametrize("code", [29, 30, 31, 53])
def test_authorization_error_without_a_message_names_the_command_that_grants_access(
    code: int,
) -> None:
    """Regression: most responses of Kafka have only an error code, for which the client showed
    just "CLUSTER AUTHORIZATION FAILED"."""
    assert "logbus acl add" in error_for(code).message


@pytest.mark.parametrize(("code", "cure"), [(12, "commit less metadata"), (24, "750 characters")])
def test_client_explains_refused_commit_if_the_response_has_no_message(
    code: int, cure: str
) -> None:
    """Regression: the client showed just "OFFSET METADATA TOO LARGE" and "INVALID GROUP ID"."""
    assert cure in error_for(code).message


CODES_WITHOUT_TEXT = (1, 3, 5, 6, 7, 10, 14, 15, 16, 19, 20, 22, 23, 25, 26, 27, 45, 49, 51, 56, 68,
                      69, 81, 82, 86, 88, 90, 100, 105)  # fmt: skip
"""Error codes that the responses of data, groups and transactions have, which have no field for a
text."""


@pytest.mark.parametrize("code", CODES_WITHOUT_TEXT)
def test_error_code_without_a_text_of_the_broker_is_explained_in_words(code: int) -> None:
    """Regression: a full disk was reported as "KAFKA STORAGE ERROR"."""
    error = error_for(code)
    assert error.code == code and len(error.message.split()) > 5
    assert error.message != error.name.replace("_", " ")
