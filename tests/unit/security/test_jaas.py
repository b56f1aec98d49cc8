"""Tests of ``sasl.jaas.config``: forms from Kafka's documentation, and refused texts."""

from __future__ import annotations

import random

import pytest

from broker_lite.errors import InvalidConfigError
from broker_lite.security.jaas import parse_jaas

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "s3cr3t-canary"


@pytest.mark.parametrize(
    ("text", "family", "options"),
    [
        (f'{SCRAM} required username="alice" password="a;b=c\\"d";', "SCRAM",
         {"username": "alice", "password": 'a;b=c"d'}),
        (f"kafkashaded.{SCRAM} required\n  username=alice\n  password = 'x' ;", "SCRAM",
         {"username": "alice", "password": "'x'"}),
        ('org.apache.kafka.common.security.plain.PlainLoginModule REQUIRED username="a" '
         'password="b" ;\n', "PLAIN", {"username": "a", "password": "b"}),
        ('org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required '
         'clientId="i" scope="s";', "OAUTHBEARER", {"clientId": "i", "scope": "s"}),
    ],
)  # fmt: skip
def test_jaas_text_of_each_login_module_is_parsed(
    text: str, family: str, options: dict[str, str]
) -> None:
    assert parse_jaas(text) == (family, options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one login"),
        (f'{SCRAM} required password="{SECRET}"', "ends in ';'"),
        (f'{SCRAM} required password="{SECRET}"; {SCRAM} required;', "one login"),
        (f'{SCRAM} password="{SECRET}";', "lacks 'required'"),
        (f'{SCRAM} required password="{SECRET}" username;', "without a value"),
        (f'{SCRAM} required password="{SECRET}" password="y";', "not a pair name=value"),
        (f'{SCRAM} required "password" = "{SECRET}";', "not a pair name=value"),
        (f'{SCRAM} required password="{SECRET};', "cannot be parsed from character"),
        (f'com.sun.security.auth.module.JndiLoginModule required password="{SECRET}";', "only"),
        (f'ScramLoginModule required password="{SECRET}";', "only"),
        (f'{SCRAM} required loginCallbackHandlerClass="x" password="{SECRET}";', "Java code"),
        (f'{SCRAM} required password="{SECRET * 2000}";', "characters"),
    ],
)
def test_invalid_jaas_text_is_refused_without_showing_its_values(text: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words) as failure:
        parse_jaas(text)
    assert SECRET not in str(failure.value)


def test_repr_of_a_parsed_jaas_text_hides_the_values_of_its_options() -> None:
    assert SECRET not in repr(parse_jaas(f'{SCRAM} required password="{SECRET}";'))


def test_random_jaas_texts_raise_only_invalid_config() -> None:
    rng = random.Random(7)
    pieces = [SCRAM, "required", "username", "=", '"', ";", "\\", " ", "a", "\n", "\0", "é"]
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=rng.randrange(12)))
        try:
            parse_jaas(text)
        except InvalidConfigError:
            continue
