"""The client's requests AlterUserScramCredentials v0, which changes passwords of SCRAM users, and
DescribeUserScramCredentials v0, which lists the users. Field names are Kafka's.

With tagged fields of logbus, a user's former password can stay valid for some time after a change.
Both passwords must then have the same salt. The answer to DescribeUserScramCredentials therefore
has the salt, and ``TAG_KEEP_OLD`` in an AlterUserScramCredentials request keeps the former
password. The salt is not secret: a client receives it at the first step of every login."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.model import ScramMechanism
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer, put_tag, uvarint_bytes

TAG_SALT = 10000
"""Number of a tagged field in each credential of the answer to DescribeUserScramCredentials. The
field has the salt."""
TAG_KEEP_OLD = 10000
"""Number of a tagged field in an ``Upsertion``. The field has the milliseconds (int64) for which
the former password stays valid."""

MECHANISMS = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
"""The SCRAM mechanisms by the numbers that Kafka gives them."""
NUMBERS = {mechanism: number for number, mechanism in MECHANISMS.items()}


class DescribedCredential(NamedTuple):
    mechanism: int
    iterations: int
    salt: bytes = b""


class DescribedUser(NamedTuple):
    user: str
    error_code: int
    error_message: str | None
    credentials: tuple[DescribedCredential, ...]


class DescribedUsers(NamedTuple):
    error_code: int
    error_message: str | None
    users: tuple[DescribedUser, ...]


@dataclass(frozen=True, slots=True)
class DescribeUsersRequest:
    """Request the SCRAM mechanisms for which each of these users has a password. With ``users``
    None, the answer has all users."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    VERSION: ClassVar[int] = 0

    users: tuple[str, ...] | None

    def encode(self, writer: Writer) -> None:
        def put(user: str) -> None:
            writer.string(user)
            writer.tag_end()

        writer.nullable_array(self.users, put)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribedUsers:
        def credential(reader: Reader) -> DescribedCredential:
            mechanism, iterations = reader.i8(), reader.i32()
            return DescribedCredential(
                mechanism, iterations, bytes(reader.tags().get(TAG_SALT, b""))
            )

        def user(reader: Reader) -> DescribedUser:
            name, code, message = reader.string(), reader.i16(), reader.nullable_string()
            return reader.ended(DescribedUser(name, code, message, reader.array(credential)))

        reader.i32()  # throttle_time_ms
        code, message = reader.i16(), reader.nullable_string()
        return reader.ended(DescribedUsers(code, message, reader.array(user)))


def encode_described_users(response: DescribedUsers, writer: Writer) -> None:
    """Write the body of the answer to DescribeUserScramCredentials, on the broker's side."""

    def put_credential(row: DescribedCredential) -> None:
        writer.i8(row.mechanism)
        writer.i32(row.iterations)
        put_tag(writer, TAG_SALT, row.salt)

    def put_user(row: DescribedUser) -> None:
        writer.string(row.user)
        writer.i16(row.error_code)
        writer.nullable_string(row.error_message)
        writer.array(row.credentials, put_credential)
        writer.tag_end()

    writer.i32(0)
    writer.i16(response.error_code)
    writer.nullable_string(response.error_message)
    writer.array(response.users, put_user)
    writer.tag_end()


class AlteredUser(NamedTuple):
    user: str
    error_code: int
    error_message: str | None


class AlterUsersResponse(NamedTuple):
    results: tuple[AlteredUser, ...]


class Deletion(NamedTuple):
    name: str
    mechanism: int


class Upsertion(NamedTuple):
    """A new password of a user for one SCRAM mechanism. The former password stays valid for
    ``keep_old_ms``; with 0, it becomes invalid at once."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes
    keep_old_ms: int = 0

    def __repr__(self) -> str:
        return f"Upsertion({self.name!r}, [hidden])"


@dataclass(frozen=True, slots=True)
class AlterUsersRequest:
    """Set passwords of users (``upsertions``) or delete them (``deletions``)."""

    API_KEY: ClassVar[int] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    VERSION: ClassVar[int] = 0

    deletions: tuple[Deletion, ...] = ()
    upsertions: tuple[Upsertion, ...] = field(default=(), repr=False)

    def encode(self, writer: Writer) -> None:
        def put_deletion(row: Deletion) -> None:
            writer.string(row.name)
            writer.i8(row.mechanism)
            writer.tag_end()

        def put_upsertion(row: Upsertion) -> None:
            writer.string(row.name)
            writer.i8(row.mechanism)
            writer.i32(row.iterations)
            for data in (row.salt, row.salted_password):
                writer.buffer += uvarint_bytes(len(data) + 1) + data
            if row.keep_old_ms:
                put_tag(writer, TAG_KEEP_OLD, row.keep_old_ms.to_bytes(8, "big"))
            else:
                writer.tag_end()

        writer.array(self.deletions, put_deletion)
        writer.array(self.upsertions, put_upsertion)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> AlterUsersResponse:
        def user(reader: Reader) -> AlteredUser:
            row = AlteredUser(reader.string(), reader.i16(), reader.nullable_string())
            return reader.ended(row)

        reader.i32()  # throttle_time_ms
        return reader.ended(AlterUsersResponse(reader.array(user)))
