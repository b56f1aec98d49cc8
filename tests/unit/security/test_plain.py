"""Tests of the SASL PLAIN message, and of its password's check against stored SCRAM keys."""

from __future__ import annotations

import pytest

from broker_lite.errors import SaslAuthenticationError
from broker_lite.model import ScramMechanism
from broker_lite.security.plain import (
    PlainClaim,
    PlainPassword,
    parse_plain,
    plain_message,
    proven_pair,
)
from broker_lite.security.scram import ScramCredential, derive_keys

SHA_512 = ScramMechanism.SHA_512
SALT = b"0123456789abcdef"


@pytest.mark.parametrize("user", ["alice", "Ärger", "a b"])
def test_plain_message_round_trips_user_and_password(user: str) -> None:
    assert parse_plain(plain_message(user, "of=x,y")) == PlainClaim(user, "of=x,y")
    assert parse_plain(f"{user}\0{user}\0p".encode()) == PlainClaim(user, "p")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not consist of authorization id"),
        (b"\0alice", "not consist of authorization id"),
        (b"\0alice\0", "not consist of authorization id"),
        (b"\0\0password", "not consist of authorization id"),
        (b"\0alice\0pass\0word", "not consist of authorization id"),
        (b"admin\0alice\0password", "another user"),
        (b"\0alice\0\xff", "UTF-8"),
        (b"\0alice\0" + b"x" * 2000, "2007 bytes; at most 1024"),
    ],
)
def test_malformed_plain_message_is_refused_without_showing_its_password(
    message: bytes, reason: str
) -> None:
    with pytest.raises(SaslAuthenticationError, match=reason) as refused:
        parse_plain(message)
    assert "password" not in str(refused.value).replace("user, password", "")


def test_plain_login_accepts_the_former_password_until_it_expires() -> None:
    pairs = tuple(derive_keys(SHA_512, each, SALT, 4096).pair() for each in ("new", "old"))
    credential = ScramCredential(SALT, 4096, pairs, 10)
    for number, password in enumerate(("new", "old")):
        assert proven_pair(PlainClaim("a", password), SHA_512, credential) is pairs[number]
    assert proven_pair(PlainClaim("a", "wrong"), SHA_512, credential) is None
    assert proven_pair(PlainClaim("a", "old"), SHA_512, credential.at(10)) is None


def test_repr_of_a_plain_message_hides_the_password() -> None:
    for each in (PlainPassword("canary"), PlainClaim("alice", "canary")):
        assert "canary" not in repr(each)
