"""Tests of the error messages of denied requests."""

from __future__ import annotations

import pytest

from broker_lite.errors import (
    ClusterAuthorizationError,
    LogbusError,
    NotLeaderError,
    TopicAuthorizationError,
)
from broker_lite.security.acls import CLUSTER_NAME, Operation, ResourceKind
from broker_lite.security.denials import OF_THIS_ID, denial, named

ALLOW = "; a user with ALTER on the cluster can allow it with: logbus acl add "
WRITE, READ, TOPIC = Operation.WRITE, Operation.READ, ResourceKind.TOPIC


@pytest.mark.parametrize(
    ("principal", "kind", "name", "command"),
    [
        ("User:alice", TOPIC, "t", "alice write --topic t"),
        ("User:CN=a b,O=x", TOPIC, "a b", "'CN=a b,O=x' write --topic 'a b'"),
        ("User:a:b", ResourceKind.GROUP, "g", "User:a:b write --group g"),
        ("User:a", ResourceKind.TRANSACTIONAL_ID, "x", "a write --transactional-id x"),
        ("User:a", ResourceKind.CLUSTER, CLUSTER_NAME, "a write --cluster"),
    ],
)
def test_error_of_a_denial_names_the_command_that_grants_the_permission(
    principal: str, kind: ResourceKind, name: str, command: str
) -> None:
    message = denial(principal, WRITE, kind, name).message
    assert message.startswith(f"{principal} may not write {kind.name.lower()} {name!r}; ")
    assert message.endswith(ALLOW + command)


def test_denial_of_a_topic_id_does_not_reveal_the_topics_name() -> None:
    message = denial("User:a", READ, TOPIC, "secret", OF_THIS_ID).message
    assert message == f"User:a may not read topic of this id{ALLOW}a read --topic NAME"


@pytest.mark.parametrize(
    ("error", "user", "principal", "argument"),
    [
        (TopicAuthorizationError(), "", "the user", "USER"),
        (TopicAuthorizationError(), "alice", "User:alice", "alice"),
        (denial("User:CN=x", WRITE, TOPIC, "t", OF_THIS_ID), "", "User:CN=x", "CN=x"),
        (ClusterAuthorizationError("the user may write to no topic"), "bob", "User:bob", "bob"),
    ],
)
def test_authorization_error_names_the_topic_although_the_response_does_not(
    error: LogbusError, user: str, principal: str, argument: str
) -> None:
    found = named(error, user, WRITE, TOPIC, "t")
    assert isinstance(found, TopicAuthorizationError)
    assert found.message == f"{principal} may not write topic 't'{ALLOW}{argument} write --topic t"


def test_client_leaves_errors_other_than_denials_unchanged() -> None:
    error = NotLeaderError()
    assert named(error, "alice", WRITE, TOPIC, "t") is error
