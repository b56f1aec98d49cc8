"""The client's requests AlterUserScramCredentials v0, which changes passwords of SCRAM users, and
DescribeUserScramCredentials v0, which lists the users. Field names are Kafka's.

With tagged fields of logbus, a user's former password can stay valid for some time after a change.
Both passwords must then have the same salt. The answer to DescribeUserScramCredentials therefore
has the salt, and ``TAG_KEEP_OLD`` in an AlterUserScramCredentials request keeps the former
password. ``TAG_OLD_UNTIL`` shows which brokers have applied such a change. The salt is not secret:
a client receives it at the first step of every login."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.model import ScramMechanism
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import CodeAfterThrottle, DeclaredCall, Int8, Int16, Int32, InTag
from broker_lite.wire.primitives import Reader, Writer, put_tag, put_tags

TAG_SALT = 10000
"""Number of a tagged field in each credential of the answer to DescribeUserScramCredentials. The
field has the salt."""
TAG_OLD_UNTIL = 10001
"""Number of a tagged field in each credential of the answer to DescribeUserScramCredentials. The
field has the wall time (ms, int64) at which the former password becomes invalid. Credentials
without a former password lack the field."""
TAG_KEEP_OLD = 10000
"""Number of a tagged field in an ``Upsertion``. The field has the milliseconds (int64) for which
the former password stays valid."""

MECHANISMS = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
"""The SCRAM mechanisms by the numbers that Kafka gives them."""
NUMBERS = {mechanism: number for number, mechanism in MECHANISMS.items()}


class UserName(NamedTuple):
    name: str


class DescribedCredential(NamedTuple):
    mechanism: Int8
    iterations: Int32
    salt: InTag[bytes] = b""
    old_until_ms: InTag[int] = 0

    def put_tags(self, writer: Writer) -> None:
        fields = {TAG_SALT: self.salt}
        if self.old_until_ms:
            fields[TAG_OLD_UNTIL] = self.old_until_ms.to_bytes(8, "big")
        put_tags(writer, fields)

    def with_tags(self, reader: Reader) -> DescribedCredential:
        tags = reader.tags()
        return self._replace(
            salt=bytes(tags.get(TAG_SALT, b"")),
            old_until_ms=int.from_bytes(tags.get(TAG_OLD_UNTIL, b""), "big"),
        )


class DescribedUser(NamedTuple):
    user: str
    error_code: Int16
    error_message: str | None
    credentials: tuple[DescribedCredential, ...]


class DescribedUsers(NamedTuple):
    error_code: CodeAfterThrottle
    error_message: str | None
    users: tuple[DescribedUser, ...]


@dataclass(frozen=True, slots=True)
class DescribeUsersRequest(DeclaredCall[DescribedUsers]):
    """Request the SCRAM mechanisms for which each of these users has a password. With ``users``
    None, the answer has all users."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    VERSION: ClassVar[int] = 0

    users: tuple[UserName, ...] | None


class AlteredUser(NamedTuple):
    user: str
    error_code: Int16
    error_message: str | None


class AlterUsersResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[AlteredUser, ...]


class Deletion(NamedTuple):
    name: str
    mechanism: Int8


class Upsertion(NamedTuple):
    """A new password of a user for one SCRAM mechanism. The former password stays valid for
    ``keep_old_ms``; with 0, it becomes invalid at once."""

    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes
    keep_old_ms: InTag[int] = 0

    def put_tags(self, writer: Writer) -> None:
        if self.keep_old_ms:
            put_tag(writer, TAG_KEEP_OLD, self.keep_old_ms.to_bytes(8, "big"))
        else:
            writer.tag_end()

    def __repr__(self) -> str:
        return f"Upsertion({self.name!r}, [hidden])"


@dataclass(frozen=True, slots=True)
class AlterUsersRequest(DeclaredCall[AlterUsersResponse]):
    """Set passwords of users (``upsertions``) or delete them (``deletions``)."""

    API_KEY: ClassVar[int] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    VERSION: ClassVar[int] = 0

    deletions: tuple[Deletion, ...] = ()
    upsertions: tuple[Upsertion, ...] = field(default=(), repr=False)
