"""Tests of the client's security settings from options and files, and of hidden passwords."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from broker_lite.client.client_config import (
    security_of,
    security_of_environment,
    security_of_file,
    take_security,
)
from broker_lite.client.discovery import security_for
from broker_lite.config.client_security import NO_SECURITY, PASSED_OVER, REFUSED
from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError

JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password="canary-p4ss";'
)
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "canary-p4ss",
}


def test_login_options_and_jaas_text_give_the_same_login() -> None:
    options = {key: LOGIN[key] for key in ("security.protocol", "sasl.mechanism")}
    assert security_of({**options, "sasl.jaas.config": JAAS}) == security_of(LOGIN)
    assert security_of(LOGIN).username == "alice"
    assert security_of(LOGIN).demands_login


def test_password_is_not_in_repr_and_cannot_be_pickled() -> None:
    security = security_of(LOGIN)
    assert "canary" not in repr(security)
    assert "canary" not in str(security)
    with pytest.raises(TypeError, match="derived keys"):
        pickle.dumps(security)
    assert pickle.loads(pickle.dumps(NO_SECURITY)) == NO_SECURITY
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism='GSSAPI'"),
        ({"sasl.username": ""}, "sasl.username"),
        ({"sasl.password": ""}, "sasl.password"),
        ({"security.protocol": "PLAINTEXT"}, "SASL_SSL"),
        ({"sasl.jaas.config": JAAS.replace("scram.Scram", "plain.Plain")}, "PLAIN"),
        ({"sasl.jaas.config": "com.sun.JndiLoginModule required a=b;"}, "login module"),
    ],
)
def test_error_for_wrong_login_options_names_the_option_but_not_the_password(
    changes: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        security_of({**LOGIN, **changes})
    assert named in str(refused.value)
    assert "canary" not in str(refused.value)


def test_client_config_file_that_other_users_may_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.conf"
    lines = ["# a comment", "client.id=x", *(f"{key}={value}" for key, value in LOGIN.items())]
    file.write_text("\n".join(lines), "utf-8")
    monkeypatch.delenv("LOGBUS_CLIENT_CONFIG", raising=False)
    assert security_of_environment() == NO_SECURITY
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    file.chmod(0o640)
    with pytest.raises(InvalidConfigError, match="chmod 600"):
        security_of_environment()
    file.chmod(0o600)
    assert security_of_environment() == security_of(LOGIN)
    with pytest.raises(InvalidConfigError, match=r"absent\.conf"):
        security_of_file(tmp_path / "absent.conf")


def test_keyword_options_override_the_client_config_file(tmp_path: Path) -> None:
    file = tmp_path / "client.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in LOGIN.items()), "utf-8")
    file.chmod(0o600)
    found, others = take_security({"client_config": file, "sasl_username": "bob", "linger_ms": 1})
    assert found == security_of({**LOGIN, "sasl.username": "bob"})
    assert others == {"linger_ms": 1}
    assert take_security({"acks": "all"}) == (None, {"acks": "all"})
    with pytest.raises(InvalidConfigError, match="sasl_password: give text"):
        take_security({"sasl_password": 17})


def test_credentials_of_a_local_cluster_are_used_only_for_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LOGBUS_CLIENT_CONFIG", raising=False)
    file = tmp_path / "admin.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in LOGIN.items()), "utf-8")
    file.chmod(0o600)
    facts = {"bootstrap_servers": "127.0.0.1:9092,127.0.0.1:9093", "client_config": str(file)}
    record = tmp_path / "logbus" / "clusters" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(facts), "utf-8")

    own = ("127.0.0.1:9093", "localhost:9092")
    assert [security_for(servers) for servers in own] == [security_of(LOGIN)] * 2
    others = ("127.0.0.1:9094", "127.0.0.1:9092,10.0.0.1:9092")
    assert [security_for(servers) for servers in others] == [NO_SECURITY] * 2
    assert security_for("127.0.0.1:9092", NO_SECURITY) == NO_SECURITY


def test_error_for_login_options_without_a_protocol_advises_sasl_ssl() -> None:
    """Regression: for sasl.* and ssl.* options together, the error advised
    security.protocol=SSL."""
    login = {key: value for key, value in LOGIN.items() if key.startswith("sasl.")}
    for more in ({}, {"ssl.ca.location": "ca.pem"}):
        with pytest.raises(InvalidConfigError, match=r"set security\.protocol=SASL_SSL$"):
            security_of({**login, **more})
    with pytest.raises(InvalidConfigError, match=r"set security\.protocol=SSL$"):
        security_of({"ssl.ca.location": "ca.pem"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("sasl.user", "sasl.username"),
        ("ssl.ca.locaton", "ssl.ca.location"),
        ("security.protcol", "security.protocol"),
    ],
)
def test_misspelt_key_of_a_client_config_file_names_the_nearest_key(
    tmp_path: Path, key: str, meant: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{key}=x\n", "utf-8")
    with pytest.raises(InvalidConfigError, match=f"{key}'; did you mean '{meant}'"):
        security_of_file(file)


def test_client_config_file_may_have_options_of_other_clients(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    keys = [*PASSED_OVER, "sasl.oauthbearer.assertion.file", "group.id", "ssl.new.option.of.kafka"]
    file.write_text("".join(f"{key}=x\n" for key in keys), "utf-8")
    assert security_of_file(file) == NO_SECURITY


@pytest.mark.parametrize("key", REFUSED)
def test_client_config_file_with_an_option_that_logbus_cannot_honour_is_refused(
    tmp_path: Path, key: str
) -> None:
    """Regression: a client ignored such options. It connected without the cipher suites or the
    revocation list that the file demanded."""
    file = tmp_path / "client.properties"
    file.write_text(f"{key}=com.example.Class\n", "utf-8")
    with pytest.raises(InvalidConfigError, match=f"{file}: option '{key}' is not supported"):
        security_of_file(file)
    file.write_text(f"{key}=\n", "utf-8")
    assert security_of_file(file) == NO_SECURITY


@pytest.mark.parametrize("package", ["oauthbearer", "oauthbearer.secured"])
def test_client_config_file_may_name_kafkas_own_handler_of_access_tokens(
    tmp_path: Path, package: str
) -> None:
    file = tmp_path / "client.properties"
    handler = f"org.apache.kafka.common.security.{package}.OAuthBearerLoginCallbackHandler"
    file.write_text(f"sasl.login.callback.handler.class={handler}\n", "utf-8")
    assert security_of_file(file) == NO_SECURITY
