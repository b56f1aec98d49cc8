"""Users and their SCRAM credentials in ZooKeeper, at /credentials/users/<name>.

Every broker keeps the credentials of all users in memory (``MetadataSnapshot.users``), and any
broker may change them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

from broker_lite.errors import InvalidRequestError
from broker_lite.metadata.security_znodes import ZnodeKind
from broker_lite.metadata.store import Create, MetadataStore
from broker_lite.metadata.znodes import decode_value, encode_value
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import KeyPair, ScramCredential, UserCredentials

CREDENTIALS = "/credentials"
USERS = f"{CREDENTIALS}/users"
SALT_KEY = f"{CREDENTIALS}/salt_key"
"""Path of a random key that all brokers share, from which they derive the salt for the login of an
unknown user.

If two brokers sent different salts for a name, a client would learn that no such user exists."""
SALT_KEY_BYTES = 32
USERS_MAX = 10_000
NAME_LENGTH_MAX = 255


def user_path(name: str) -> str:
    """Return the path of a user's znode. Raises InvalidRequestError for a name that is not
    allowed."""
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidRequestError(
            f"user name {name[:40]!r} is empty, longer than {NAME_LENGTH_MAX} characters, or has "
            "control characters; choose another"
        )
    return f"{USERS}/{quote(name, safe='').replace('.', '%2E')}"


def user_name(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def encode_user(credentials: UserCredentials) -> bytes:
    rows: dict[str, Any] = {}
    for mechanism, credential in sorted(credentials.items()):
        rows[mechanism.value] = {
            "salt": _text(credential.salt),
            "iterations": credential.iterations,
            "keys": [[_text(key) for key in pair] for pair in credential.pairs],
            "old_until_ms": credential.old_until_ms,
        }
    return encode_value({"mechanisms": rows})


def decode_user(path: str, data: bytes) -> UserCredentials:
    credentials = {}
    for name, row in decode_value(path, data)["mechanisms"].items():
        pairs = tuple(KeyPair(*map(b64decode, pair)) for pair in row["keys"])
        numbers = row["iterations"], row["old_until_ms"]
        if len(pairs) not in (1, 2) or not all(type(number) is int for number in numbers):
            raise ValueError(
                f"a credential has {len(pairs)} pairs of keys instead of 1 or 2, or its numbers "
                f"{numbers} are not integers"
            )
        credentials[ScramMechanism(name)] = ScramCredential(
            b64decode(row["salt"]), row["iterations"], pairs, row["old_until_ms"]
        )
    return credentials


KIND = ZnodeKind[str, UserCredentials](
    USERS,
    user_path,
    user_name,
    encode_user,
    decode_user,
    empty={},
    bad={},
    cure=lambda path: (
        f"User {user_name(path)!r} cannot log in until it has a new password: logbus user add "
        f"{user_name(path)!r}"
    ),
)


async def load_salt_key(store: MetadataStore, random_bytes: Callable[[int], bytes]) -> bytes:
    """Return the key from which brokers derive the salts of unknown users. In a new cluster, create
    it first."""
    await store.write([Create(CREDENTIALS)])
    await store.write([Create(SALT_KEY, random_bytes(SALT_KEY_BYTES))])
    znode = await store.get(SALT_KEY)
    assert znode is not None, "the salt key cannot be missing, because no code deletes it"
    return znode.data


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")
