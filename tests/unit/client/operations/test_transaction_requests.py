"""Tests of the errors that a transactional producer finds in the coordinator's answers."""

from __future__ import annotations

import pytest

from broker_lite.client.operations.transaction_requests import added_error
from broker_lite.errors import (
    ConcurrentTransactionsError,
    LogbusError,
    OperationNotAttemptedError,
    TopicAuthorizationError,
)
from broker_lite.wire.calls.transactions import (
    AddedPartition,
    AddedTopic,
    AddPartitionsToTxnResponse,
)


def answered(*errors: type[LogbusError] | None) -> AddPartitionsToTxnResponse:
    """Return an answer with one error for each partition of the topic ``orders``."""
    rows = tuple(
        AddedPartition(number, 0 if error is None else error.code)
        for number, error in enumerate(errors)
    )
    return AddPartitionsToTxnResponse(0, (AddedTopic("orders", rows),))


def test_response_that_accepts_all_added_partitions_raises_no_error() -> None:
    assert added_error(answered(None, None)) is None


@pytest.mark.parametrize("is_denied_first", [False, True])
def test_authorization_error_of_one_partition_is_raised_before_errors_of_other_partitions(
    is_denied_first: bool,
) -> None:
    """Regression: the error said only that another partition of the request was refused."""
    errors = [OperationNotAttemptedError, TopicAuthorizationError]
    if is_denied_first:
        errors.reverse()
    error = added_error(answered(*errors))
    assert isinstance(error, TopicAuthorizationError)
    denied = errors.index(TopicAuthorizationError)
    assert f"cannot add orders-{denied} to the transaction: the user may not" in error.message


def test_non_retriable_error_of_a_partition_is_raised_rather_than_a_retriable_one() -> None:
    error = added_error(answered(ConcurrentTransactionsError, TopicAuthorizationError))
    assert isinstance(error, TopicAuthorizationError)
    assert isinstance(added_error(answered(ConcurrentTransactionsError)), LogbusError)
