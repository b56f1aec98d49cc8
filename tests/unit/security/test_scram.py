"""Tests of SCRAM logins: client and server, another implementation, the RFC 7677 example, bad
input."""

from __future__ import annotations

import base64
import pickle

import pytest
from scramp import ScramMechanism as ScrampMechanism

from broker_lite.errors import SaslAuthenticationError
from broker_lite.security.scram import (
    KeyPair,
    ScramClient,
    ScramCredential,
    ScramKeys,
    ScramMechanism,
    derive_keys,
)
from broker_lite.security.scram_server import ScramLogin

SALT = bytes(range(16))
SHA_256 = ScramMechanism.SHA_256
FAKE_KEY = b"secret of the cluster"


def pair_of(password: str, mechanism: ScramMechanism = SHA_256) -> KeyPair:
    return derive_keys(mechanism, password, SALT, 4096).pair()


def login_of(*passwords: str, mechanism: ScramMechanism = SHA_256) -> ScramLogin:
    pairs = tuple(pair_of(password, mechanism) for password in passwords)
    users = {"alice": ScramCredential(SALT, 4096, pairs)}
    return ScramLogin(mechanism, users.get, "server-nonce", FAKE_KEY)


def log_in(login: ScramLogin, client: ScramClient) -> None:
    client.verify(login.finish(client.final(login.challenge(client.first()))))


def test_messages_of_a_scram_login_equal_the_example_of_rfc_7677() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = client.final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final.endswith(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_client_logs_in_with_a_password_or_with_derived_keys(
    mechanism: ScramMechanism,
) -> None:
    client = ScramClient(mechanism, "alice", "wonder,land=é", "n1")
    login = login_of("wonder,land=é", mechanism=mechanism)
    log_in(login, client)
    assert (login.user, login.pair) == ("alice", pair_of("wonder,land=é", mechanism))
    assert client.keys is not None
    log_in(
        login_of("wonder,land=é", mechanism=mechanism),
        ScramClient(mechanism, "alice", client.keys, "n2"),
    )


def test_scram_client_logs_in_at_a_server_of_another_implementation() -> None:
    scramp = ScrampMechanism("SCRAM-SHA-512")
    auth = scramp.make_auth_info("pass", salt=SALT)
    server = scramp.make_server(lambda user: auth if user == "a,b=c" else None)
    client = ScramClient(ScramMechanism.SHA_512, "a,b=c", "pass", "n1")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    client.verify(server.get_server_final().encode())


@pytest.mark.parametrize("password", ["new", "old"])
def test_client_logs_in_with_the_new_or_the_former_password_during_a_rotation(
    password: str,
) -> None:
    login = login_of("new", "old")
    log_in(login, ScramClient(SHA_256, "alice", password, "n1"))
    assert login.pair == pair_of(password)


@pytest.mark.parametrize(
    "user", ["\ufb01ona", "Jose\u0301", "\u05d0\u05d1-1", "\u2167", "a,b=c=2C"]
)
def test_user_name_is_compared_without_unicode_normalization(user: str) -> None:
    """SASLprep, which Kafka does not apply either, would change or refuse the names in this
    test."""
    users = {user: ScramCredential(SALT, 4096, (pair_of("new"),))}
    login = ScramLogin(SHA_256, users.get, "server-nonce", FAKE_KEY)
    log_in(login, ScramClient(SHA_256, user, "new", "n1"))
    assert login.user == user


def test_user_name_with_an_invisible_character_does_not_log_in() -> None:
    login = login_of("new")
    client = ScramClient(SHA_256, "al\u00adice", "new", "n1")
    challenge = login.challenge(client.first())
    with pytest.raises(SaslAuthenticationError):
        login.finish(client.final(challenge))
    assert login.pair is None


def test_scram_answers_to_a_wrong_password_and_an_unknown_user_are_equal() -> None:
    texts = set()
    for user, password in (("alice", "wrong"), ("mallory", "new")):
        login = login_of("new")
        client = ScramClient(SHA_256, user, password, "n1")
        challenge = login.challenge(client.first())
        assert challenge.startswith(b"r=n1server-nonce,s=")
        with pytest.raises(SaslAuthenticationError) as failure:
            login.finish(client.final(challenge))
        assert login.pair is None
        texts.add(failure.value.message)
    assert len(texts) == 1


def test_salt_sent_for_an_unknown_user_is_stable_and_differs_between_users() -> None:
    def salt(user: str, nonce: str = "n1") -> bytes:
        first = ScramClient(SHA_256, user, "x", nonce).first()
        login = ScramLogin(SHA_256, dict[str, ScramCredential]().get, f"server-{nonce}", FAKE_KEY)
        return login.challenge(first).split(b",")[1]

    assert salt("mallory") == salt("mallory", "n2") != salt("trudy")


def test_scram_proof_for_another_nonce_is_refused() -> None:
    """CVE-2024-56128: a server that does not compare the nonces accepts replayed proofs."""
    client = ScramClient(SHA_256, "alice", "new", "n1")
    first_login = login_of("new")
    proof = client.final(first_login.challenge(client.first()))
    later = ScramLogin(SHA_256, first_login._credential_of, "other-nonce", FAKE_KEY)
    later.challenge(client.first())
    with pytest.raises(SaslAuthenticationError, match=r"nonce.*librdkafka before 2\.6\.1"):
        later.finish(proof)


def test_scram_login_of_an_unknown_user_fails_even_with_a_matching_proof() -> None:
    """For an unknown user, the server checks the proof against a stored key of zero bytes.

    A client can compute a proof that matches this key, so the server must refuse even a matching
    proof.
    """
    salt = login_of("new").challenge(b"n,,n=trudy,r=n1").split(b",")[1][2:]
    keys = ScramKeys(SHA_256, base64.b64decode(salt), 8192, bytes(32), bytes(32))
    with pytest.raises(SaslAuthenticationError):
        log_in(login_of("new"), ScramClient(SHA_256, "trudy", keys, "n1"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,a=bob,n=alice,r=n1",
        b"y,,n=alice",
        b"p=tls-exporter,,n=alice,r=n1",
        b"n,,m=x,n=alice,r=n1",
        b"n,,n=al=ice,r=n1",
        b"n,,n=,r=n1",
        b"n,,n=alice,r=\xff",
        b"n,,n=alice\x00,r=n1",
        b"n,,n=alice,r=" + b"x" * 5000,
    ],
)
def test_malformed_first_scram_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationError):
        login_of("new").challenge(message)


@pytest.mark.parametrize("message", [b"", b"c=biws", b"c=biws,r=n1server-nonce,p=!", b"\xff"])
def test_malformed_scram_proof_is_refused(message: bytes) -> None:
    login = login_of("new")
    login.challenge(b"n,,n=alice,r=n1")
    with pytest.raises(SaslAuthenticationError):
        login.finish(message)


def test_scram_proof_before_the_challenge_is_refused() -> None:
    with pytest.raises(SaslAuthenticationError):
        login_of("new").finish(b"c=biws,r=n1server-nonce,p=AAAA")


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"r=other,s=AAAA,i=4096", "nonce"),
        (b"r=n1,s=AAAA,i=4096", "nonce"),
        (b"r=n1x,s=AAAA,i=4095", "4095 iterations"),
        (b"r=n1x,s=AAAA,i=9999999", "9999999 iterations"),
        (b"r=n1x,s=AAAA,i=-1", "not a number"),
        (b"r=n1x,s=,i=4096", "iterations"),
        (b"r=n1x,s=%%%,i=4096", "not SCRAM"),
        (b"m=x,r=n1x,s=AAAA,i=4096", "not SCRAM"),
        (b"r=n1x,r=n1y,s=AAAA,i=4096", "not SCRAM"),
        (b"\xff", "not UTF-8"),
        (b"r=" + b"x" * 9000, "9002 bytes"),
    ],
)
def test_scram_client_refuses_a_malformed_challenge(challenge: bytes, words: str) -> None:
    with pytest.raises(SaslAuthenticationError, match=words):
        ScramClient(SHA_256, "alice", "p", "n1").final(challenge)


def test_scram_client_refuses_a_server_without_the_users_keys() -> None:
    client = ScramClient(SHA_256, "alice", "p", "n1")
    with pytest.raises(SaslAuthenticationError, match="impostor"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))
    client.final(b"r=n1x,s=AAAA,i=4096")
    with pytest.raises(SaslAuthenticationError, match="impostor"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(SaslAuthenticationError, match="unknown-user"):
        client.verify(b"e=unknown-user")


def test_scram_error_after_a_password_change_says_that_the_password_has_changed() -> None:
    keys = derive_keys(SHA_256, "p", bytes(16), 4096)
    with pytest.raises(SaslAuthenticationError, match="has changed"):
        ScramClient(SHA_256, "alice", keys, "n1").final(b"r=n1x,s=AAAA,i=4096")


def test_repr_of_scram_keys_hides_their_bytes() -> None:
    keys = derive_keys(SHA_256, "p", SALT, 4096)
    assert "hidden" in repr(keys) and "\\x" not in repr(keys)
    assert "\\x" not in repr(keys.pair())
    assert pickle.loads(pickle.dumps(keys)) == keys
