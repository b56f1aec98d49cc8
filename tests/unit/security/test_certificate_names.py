"""Tests of Kafka's rules that map the names in certificates to principals."""

from __future__ import annotations

import pytest

from broker_lite.errors import InvalidConfigError, SaslAuthenticationError
from broker_lite.security.certificate_names import parse_rules, principal_of

NAME = "CN=Kafka-1.example.com,OU=Ops,O=Example,C=US"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", f"User:{NAME}"),
        ("DEFAULT", f"User:{NAME}"),
        ("RULE:^CN=(.*?),.*$/$1/", "User:Kafka-1.example.com"),
        ("RULE:^CN=(.*?),.*$/$1/L", "User:kafka-1.example.com"),
        ("RULE:^CN=(.*?), .*$/$1/ , RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U, DEFAULT",
         "User:KAFKA-1.EXAMPLE.COM@OPS"),
        ("RULE:CN=other.*/x/,DEFAULT", f"User:{NAME}"),
        (r"RULE:^CN=(.*?),.*$/team\/$1/", "User:team/Kafka-1.example.com"),
    ],
)  # fmt: skip
def test_rules_map_certificate_names_to_principals(rules: str, expected: str) -> None:
    assert principal_of(NAME, parse_rules(rules)) == expected


def test_rule_pattern_must_match_the_whole_certificate_name() -> None:
    """If a match of a part sufficed, the owner of a longer name could act as another user."""
    rules = parse_rules("RULE:CN=(admin)/$1/")
    assert principal_of("CN=admin", rules) == "User:admin"
    with pytest.raises(SaslAuthenticationError, match="no rule"):
        principal_of("CN=admin,O=Evil", rules)
    with pytest.raises(SaslAuthenticationError, match="no rule"):
        principal_of("O=CN=admin", rules)


@pytest.mark.parametrize("name", ["", "CN=" + "x" * 1024, "CN=a\nb", "CN=a\x00"])
def test_empty_overlong_or_unprintable_certificate_name_is_refused(name: str) -> None:
    with pytest.raises(SaslAuthenticationError, match="certificate's name"):
        principal_of(name, parse_rules("DEFAULT"))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("default", "is not a rule"),
        ("RULE:CN=(.*)", "is not a rule"),
        ("RULE:CN=(.*)/$1/X", "is not a rule"),
        ("RULE:CN=(.*/$1/", "is invalid"),
        ("RULE:CN=.*/$1/", "names a group"),
    ],
)
def test_malformed_mapping_rule_is_refused(rules: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        parse_rules(rules)
