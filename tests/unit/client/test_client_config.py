"""The client's security settings from a file, and what keeps its password hidden."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from broker_lite.client.client_config import security_of, security_of_environment, security_of_file
from broker_lite.config.client_security import NO_SECURITY
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


def test_options_and_jaas_text_give_the_same_login() -> None:
    options = {key: LOGIN[key] for key in ("security.protocol", "sasl.mechanism")}
    assert security_of({**options, "sasl.jaas.config": JAAS}) == security_of(LOGIN)
    assert security_of(LOGIN).username == "alice"
    assert security_of(LOGIN).demands_login


def test_password_is_in_no_text_and_no_pickle() -> None:
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
def test_wrong_login_options_are_named_without_the_password(
    changes: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        security_of({**LOGIN, **changes})
    assert named in str(refused.value)
    assert "canary" not in str(refused.value)


def test_environment_names_a_file_that_others_may_not_read(
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
