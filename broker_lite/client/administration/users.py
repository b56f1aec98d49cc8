"""List and delete users of SCRAM logins, and set and rotate their passwords.

The password itself never leaves this process. Brokers receive the salted password (RFC 5802), and
store only keys derived from it that verify a login."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Sequence
from hashlib import pbkdf2_hmac
from typing import NamedTuple

from broker_lite.client.administration.admin_requests import await_applied
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.requests import ask_any_broker, on_any_broker
from broker_lite.client.transport.steps import CallExchange, Operation
from broker_lite.errors import InvalidRequestError, ResourceNotFoundError, raise_for
from broker_lite.model import Endpoint, ScramMechanism
from broker_lite.wire.calls import users as calls

ITERATIONS = 8192
"""Number of PBKDF2 iterations for a new password."""
SALT_BYTES = 16
"""Bytes of the random salt of a new password."""


class Credential(NamedTuple):
    """The public parameters of a user's SCRAM login with one mechanism: iterations and salt.

    ``old_until_ms`` is the wall time (ms) at which the former password becomes invalid; 0 if the
    last change of the password kept none."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    old_until_ms: int = 0


class User(NamedTuple):
    """A user, with a credential for each SCRAM mechanism."""

    name: str
    credentials: tuple[Credential, ...]


def describe_users(
    cluster: Cluster, names: Sequence[str] | None, deadline_ms: float
) -> Operation[list[User]]:
    """Return the users with these names, or all. Raises ResourceNotFoundError for an unknown
    name."""
    request = calls.DescribeUsersRequest(
        None if names is None else tuple(map(calls.UserName, names))
    )
    answer = yield from on_any_broker(cluster, CallExchange(request), lambda _: None, deadline_ms)
    raise_for(answer.error_code, answer.error_message)
    return _users(answer)


def _users(answer: calls.DescribedUsers) -> list[User]:
    users = []
    for row in answer.users:
        raise_for(row.error_code, row.error_message)
        credentials = tuple(
            Credential(
                calls.MECHANISMS[each.mechanism], each.iterations, each.salt, each.old_until_ms
            )
            for each in row.credentials
        )
        users.append(User(row.user, credentials))
    return users


def check_password_of(own: str, name: str) -> None:
    """Raise InvalidRequestError if the client would change the password of its own user.

    The brokers would close its connections, which logged in with the old password. The client could
    then not confirm that all brokers know the new password."""
    if own and name == own:
        raise InvalidRequestError(
            f"you are logged in as {name!r}, and the old password would become invalid at once. "
            f"Keep it valid for a time with: logbus user rotate {shlex.quote(name)}"
        )


def check_deletion(own: str, name: str) -> None:
    """Raise InvalidRequestError if ``name`` is the client's ``own`` user, who may be the last
    administrator."""
    if own and name == own:
        raise InvalidRequestError(
            f"you are logged in as {name!r}, who may be the last administrator of this cluster. "
            "Make another user an administrator (super.users, or logbus acl add USER all "
            "--cluster), log in as that user, and delete this one then"
        )


def set_password(
    cluster: Cluster,
    name: str,
    password: str,
    mechanisms: Sequence[ScramMechanism],
    deadline_ms: float,
) -> Operation[None]:
    """Create a user, or replace a user's password, for the given SCRAM mechanisms.

    Return once every live broker accepts the password. Raises InvalidRequestError for the client's
    own user."""
    check_password_of(cluster.user, name)
    rows = []
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        rows.append(upsertion(name, password, Credential(mechanism, ITERATIONS, salt)))
    writer = yield from _alter(cluster, calls.AlterUsersRequest((), tuple(rows)), deadline_ms)
    salts = {row.salt for row in rows}
    yield from _await(
        cluster,
        writer,
        name,
        lambda user: user is not None and salts <= {each.salt for each in user.credentials},
        deadline_ms,
    )


def rotate_password(
    cluster: Cluster, name: str, password: str, keep_old_ms: int, deadline_ms: float
) -> Operation[None]:
    """Replace a user's password for all its SCRAM mechanisms. Return once every live broker accepts
    the new password.

    The old password stays valid for ``keep_old_ms`` milliseconds (at least 1)."""
    (user,) = yield from describe_users(cluster, (name,), deadline_ms)
    rows = tuple(
        upsertion(name, password, each)._replace(keep_old_ms=keep_old_ms)
        for each in user.credentials
    )
    writer = yield from _alter(cluster, calls.AlterUsersRequest((), rows), deadline_ms)
    # A rotation keeps the salt. Only the time at which the old password becomes invalid shows that
    # a broker has applied the rotation.
    former = {each.old_until_ms for each in user.credentials}
    yield from _await(
        cluster,
        writer,
        name,
        lambda user: (
            user is not None and former.isdisjoint(each.old_until_ms for each in user.credentials)
        ),
        deadline_ms,
    )


def delete_user(cluster: Cluster, name: str, deadline_ms: float) -> Operation[None]:
    """Delete a user. Return once every live broker has closed the user's connections.

    Raises InvalidRequestError for the client's own user."""
    check_deletion(cluster.user, name)
    (user,) = yield from describe_users(cluster, (name,), deadline_ms)
    rows = tuple(calls.Deletion(name, calls.NUMBERS[each.mechanism]) for each in user.credentials)
    writer = yield from _alter(cluster, calls.AlterUsersRequest(rows), deadline_ms)
    yield from _await(cluster, writer, name, lambda user: user is None, deadline_ms)


def upsertion(name: str, password: str, credential: Credential) -> calls.Upsertion:
    """Return the request row that sets a user's password for one SCRAM mechanism."""
    mechanism, iterations, salt, _ = credential
    salted = pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    return calls.Upsertion(name, calls.NUMBERS[mechanism], iterations, salt, salted)


def _alter(
    cluster: Cluster, request: calls.AlterUsersRequest, deadline_ms: float
) -> Operation[Endpoint]:
    """Alter users. Return the address of the broker that has written the change."""
    exchange = CallExchange(request)
    answer, writer = yield from ask_any_broker(cluster, exchange, lambda _: None, deadline_ms)
    for row in answer.results:
        raise_for(row.error_code, row.error_message)
    return writer


def _await(
    cluster: Cluster,
    writer: Endpoint,
    name: str,
    is_known: Callable[[User | None], bool],
    deadline_ms: float,
) -> Operation[None]:
    """Wait until every live broker has applied a change of the user ``name``.

    ``is_known`` receives the user as a broker describes it, or None, and returns whether that
    broker has applied the change."""
    return await_applied(
        cluster,
        writer,
        CallExchange(calls.DescribeUsersRequest((calls.UserName(name),))),
        _user,
        is_known,
        changed=f"user {name!r}",
        deadline_ms=deadline_ms,
    )


def _user(answer: calls.DescribedUsers) -> User | None:
    try:
        return _users(answer)[0]
    except ResourceNotFoundError:
        return None
