"""Handle AlterUserScramCredentials 0: set and delete SCRAM credentials of users.

Any broker writes them to ZooKeeper. With the salted passwords in a request, an eavesdropper could
log in, so requests are accepted only over TLS or from the broker's own machine. A tagged field of
logbus (``wire/calls/users.py``) keeps a user's former password valid for a time. All changes of one
user succeed or fail together."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_lite.errors import (
    DuplicateResourceError,
    LogbusError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from broker_lite.metadata.credentials import USERS_MAX
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    UserCredentials,
    keys_of_salted,
)
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.network.context import RequestContext
from broker_lite.server.network.logins import is_private
from broker_lite.wire.calls.users import MECHANISMS
from broker_lite.wire.tables import AlterUserScramCredentialsResponse as Response
from broker_lite.wire.tables import build, error_fields, own_tag

SALT_BYTES_MAX = 256
"""Maximum bytes of a credential's salt."""
KEEP_OLD_MS_MAX = 30 * 86_400_000
"""Maximum time (ms) for which a former password stays valid: 30 days."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Change the credentials of each user. Each user has its own error in the answer."""
    rows = [*message.deletions, *message.upsertions]
    times = Counter((row.name, row.mechanism) for row in rows)
    answers = []
    for name in dict.fromkeys(row.name for row in rows):
        error: LogbusError | None = None
        try:
            if not is_private(request.session):
                raise UnacceptableCredentialError(
                    "credentials are accepted only over TLS or from the broker's own machine"
                )
            if any(count > 1 for (user, _), count in times.items() if user == name):
                raise DuplicateResourceError(
                    f"user {name!r} occurs twice with one mechanism; name each mechanism once"
                )
            await _change(parts, name, message)
        except LogbusError as raised:
            error = raised
        answers.append(
            build(Response.AlterUserScramCredentialsResult, user=name, **error_fields(error))
        )
    return Response(results=answers)


async def _change(parts: BrokerContext, name: str, message: Any) -> None:
    deleted = [_mechanism(row) for row in message.deletions if row.name == name]
    upserted = [row for row in message.upsertions if row.name == name]
    users = parts.registry.snapshot.users
    if upserted:
        parts.authorizer.check_user_name(name)
    if upserted and name not in users and len(users) >= USERS_MAX:
        raise UnacceptableCredentialError(
            f"user {name!r} cannot be added, because the cluster has the maximum of {USERS_MAX} "
            "users; delete another user first"
        )
    now_ms = parts.clock.now_ms()

    def change(before: UserCredentials) -> UserCredentials:
        after = dict(before)
        for mechanism in deleted:
            if after.pop(mechanism, None) is None:
                raise ResourceNotFoundError(f"user {name!r} has no {mechanism} credential")
        for row in upserted:
            mechanism = _mechanism(row)
            after[mechanism] = _credential(row, mechanism, before.get(mechanism), now_ms)
        return after

    await within(WAIT_MS, parts.registry.administration.alter_user(name, change))


def _mechanism(row: Any) -> ScramMechanism:
    mechanism = MECHANISMS.get(row.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanismError(
            f"SCRAM mechanism {row.mechanism} does not exist; give 1 (SHA-256) or 2 (SHA-512)"
        )
    return mechanism


def _credential(
    row: Any, mechanism: ScramMechanism, before: ScramCredential | None, now_ms: int
) -> ScramCredential:
    """Return the new credential of a user.

    If the request keeps the former password valid for a time, the credential also has that
    password's keys."""
    if not ITERATIONS_MIN <= row.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredentialError(
            f"user {row.name!r}: iterations={row.iterations}; "
            f"give {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    if not 0 < len(row.salt) <= SALT_BYTES_MAX or not row.salted_password:
        raise UnacceptableCredentialError(
            f"user {row.name!r}: the salt or the salted password is empty, or the salt has more "
            f"than {SALT_BYTES_MAX} bytes"
        )
    keys = keys_of_salted(mechanism, row.salted_password, row.salt, row.iterations)
    fresh = ScramCredential(row.salt, row.iterations, (keys.pair(),))
    keep_old_ms = own_tag(row) or 0
    if not keep_old_ms:
        return fresh
    if before is None or (before.salt, before.iterations) != (row.salt, row.iterations):
        raise UnacceptableCredentialError(
            f"user {row.name!r} has no former password with this salt and number of iterations, so "
            "none can stay valid"
        )
    if not 0 < keep_old_ms <= KEEP_OLD_MS_MAX:
        raise UnacceptableCredentialError(
            f"the former password of user {row.name!r} cannot stay valid for {keep_old_ms} ms; "
            f"give 1 to {KEEP_OLD_MS_MAX} ms"
        )
    # A client repeats a request whose answer was lost. Keep the former password then, too.
    is_repeat = before.pairs[0] == keys.pair()
    former = before.pairs[-1] if is_repeat else before.pairs[0]
    return fresh._replace(pairs=(keys.pair(), former), old_until_ms=now_ms + keep_old_ms)
