"""Handle DescribeUserScramCredentials 0: return the SCRAM mechanisms and iteration counts of users.

The answer never contains keys. Tagged fields of logbus have the salt of each credential, and the
time until which a former password stays valid. Any broker answers from its metadata snapshot.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_lite.errors import NO_ERROR, DuplicateResourceError, ResourceNotFoundError
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.users import (
    NUMBERS,
    DescribedCredential,
    DescribedUser,
    DescribedUsers,
)


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Describe the users that the request names, or all users if it names none."""
    users = parts.registry.snapshot.users
    requested = (
        Counter(row.name for row in message.users) if message.users else Counter(list(users))
    )
    rows = []
    for name, times in sorted(requested.items()):
        code, reason, stored = NO_ERROR, None, users.get(name, {})
        if times > 1:
            code, stored = DuplicateResourceError.code, {}
            reason = f"user {name!r} occurs more than once in the request"
        elif not stored and message.users:
            # An answer about all users also lists, without credentials, the users whose znode
            # cannot be decoded. An answer about a named user gives the error.
            code = ResourceNotFoundError.code
            reason = (
                f"the znode of user {name!r} cannot be read; set a password with: logbus user add"
                if name in users
                else f"there is no user {name!r}; list the users with: logbus user list"
            )
        credentials = tuple(
            DescribedCredential(
                NUMBERS[mechanism],
                credential.iterations,
                credential.salt,
                credential.old_until_ms,
            )
            for mechanism, credential in sorted(stored.items())
        )
        rows.append(DescribedUser(name, code, reason, credentials))
    return DescribedUsers(NO_ERROR, None, tuple(rows))
