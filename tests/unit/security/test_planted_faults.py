"""Faults that are planted in a copy of the code, each found by a test (``PLANTS``).

``make fuzz`` runs them. ``make test`` only checks that the code of each fault and its test exist.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import broker_lite

TESTS = Path(__file__).parents[2]
PACKAGE = Path(broker_lite.__file__).parent
NETWORK, SECURITY = "server/network/", "security/"


class Plant(NamedTuple):
    """A fault: in ``file``, ``right`` becomes ``wrong``; ``test`` (file and ``-k``) must fail."""

    file: str
    right: str
    wrong: str
    test: tuple[str, str]


ACCESS = "unit/server/network/test_access.py"
MATRIX = "unit/server/network/test_access_matrix.py"
LOGINS = "unit/server/network/test_logins.py"
TOKENS = "unit/security/test_tokens.py"
AUTHORIZER = "unit/security/test_authorizer.py"

PLANTS = {
    "fetch-by-id": Plant(
        NETWORK + "access.py",
        "                name, shown = view.name, OF_THIS_ID\n",
        "                continue\n",
        (MATRIX, "insufficient_permissions"),
    ),
    "envelope-of-a-client": Plant(
        NETWORK + "access.py",
        "if session.listener != self._inter_broker or session.is_forwarded:",
        "if session.is_forwarded:",
        (ACCESS, "forged_or_nested_envelope"),
    ),
    "envelope-by-its-sender": Plant(
        "server/dispatch.py",
        "            principal=envelope.principal,\n",
        "",
        (ACCESS, "envelope_is_authorized_for_its_client"),
    ),
    "nonce": Plant(
        SECURITY + "scram_server.py",
        "                server.set_client_final(text)\n",
        "                server.set_client_final(_with_nonce(server, text))\n",
        ("unit/security/test_scram.py", "proof_of_another_nonce"),
    ),
    "allow-beats-deny": Plant(
        SECURITY + "authorizer.py",
        "                        return Decision(False, Acl(pattern, entry))\n",
        "                        denied = True\n",
        (AUTHORIZER, "decisions_equal_the_reference"),
    ),
    "stale-cache": Plant(
        SECURITY + "authorizer.py",
        "        return AclIndex(entries, super_users=self._super_users, "
        "allow_if_none=self._allow_if_none)\n",
        "        made = AclIndex(entries, super_users=self._super_users, "
        "allow_if_none=self._allow_if_none)\n        made._cache = self._cache\n"
        "        return made\n",
        (AUTHORIZER, "cached_decision_is_not_used_after_a_change"),
    ),
    "prefix-as-literal": Plant(
        SECURITY + "authorizer.py",
        "Pattern(kind, PatternType.PREFIXED, name[:length])",
        "Pattern(kind, PatternType.PREFIXED, name)",
        (AUTHORIZER, "decisions_equal_the_reference"),
    ),
    "another-user": Plant(
        NETWORK + "logins.py",
        "        if session.mechanism and (principal, mechanism) != ",
        "        if session.number < 0 and (principal, mechanism) != ",
        (LOGINS, "log_in_again_after_its_lifetime"),
    ),
    "replica-id": Plant(
        NETWORK + "access.py",
        "if self._authorizer.broker_id(self._session) not in (ANY_BROKER, replica_id):",
        "if self._authorizer.broker_id(self._session) is None:",
        (ACCESS, "broker_is_recognised_by_its_principal"),
    ),
    "pool-key": Plant(
        "client/transport/blocking.py",
        "_shared.setdefault((client_id, chosen), Pool(client_id, chosen))",
        "_shared.setdefault((client_id, chosen.username), Pool(client_id, chosen))",
        ("unit/client/transport/test_blocking.py", "shared_by_one_credential"),
    ),
    "reload": Plant(
        NETWORK + "tls_listener.py",
        "            return False\n",
        "            raise\n",
        ("unit/server/network/test_tls_listener.py", "changed_files_serve"),
    ),
    "deleted-user": Plant(
        NETWORK + "logins.py",
        "            elif session.key is not None and not self._has_key(session):\n",
        "            elif False:\n",
        (LOGINS, "deleted_user_loses_the_connection"),
    ),
    "stale-session": Plant(
        NETWORK + "access.py",
        "            self._mark is not self._authorizer.index.mark\n",
        "            self._allowed is None\n",
        (ACCESS, "cached_topics_are_dropped"),
    ),
    "secret-without-tls": Plant(
        NETWORK + "logins.py",
        "        if name in TLS_ONLY and not session.is_encrypted:\n",
        "        if False:\n",
        (LOGINS, "plain_and_oauthbearer_are_refused_without_tls"),
    ),
    "plain-for-another": Plant(
        SECURITY + "plain.py",
        '    if authorization not in ("", user):\n',
        "    if False:\n",
        ("unit/security/test_plain.py", "broken_message_is_refused"),
    ),
    "token-end": Plant(
        SECURITY + "tokens.py",
        "    if now_ms >= ends_ms:\n",
        "    if False:\n",
        (TOKENS, "token_is_valid_until_its_expiry_time"),
    ),
    "token-audience": Plant(
        SECURITY + "tokens.py",
        '                "verify_exp": False,\n',
        '                "verify_exp": False,\n                "verify_aud": False,\n',
        (TOKENS, "not_for_this_cluster"),
    ),
    "token-brings-its-key": Plant(
        SECURITY + "tokens.py",
        '_REFUSED_HEADERS = ("jku", "x5u", "jwk", "x5c", "crit")\n',
        "_REFUSED_HEADERS = ()\n",
        (TOKENS, "not_for_this_cluster"),
    ),
    "session-outlives-token": Plant(
        NETWORK + "logins.py",
        "        if proof.ends_ms:\n",
        "        if False:\n",
        (LOGINS, "session_must_log_in_again_when_its_token_ends"),
    ),
}
WITH_NONCE = """

def _with_nonce(server: ScramServer, text: str) -> str:
    fields = text.split(",")
    return ",".join([fields[0], "r=" + server.nonce, *fields[2:]])
"""


@pytest.mark.parametrize("name", PLANTS)
def test_code_and_test_of_a_planted_fault_exist(name: str) -> None:
    """Regression: tests were renamed, so that no test found six of the faults."""
    plant = PLANTS[name]
    file, chosen = plant.test
    text = (PACKAGE / plant.file).read_text("utf-8")
    assert text.count(plant.right) == 1, f"{plant.file} has changed; plant the fault anew"
    assert re.search(rf"^def test_\w*{chosen}", (TESTS / file).read_text("utf-8"), re.MULTILINE)


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    plant = PLANTS[name]
    copy = tmp_path / "broker_lite"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / plant.file
    text = file.read_text("utf-8")
    extra = WITH_NONCE if name == "nonce" else ""
    file.write_text(text.replace(plant.right, plant.wrong) + extra, "utf-8")
    found = _run(plant.test, tmp_path)
    assert found.returncode == 1, found.stdout[-3000:]
    assert " failed" in found.stdout and " error" not in found.stdout.splitlines()[-1]


def _run(test: tuple[str, str], package: Path) -> subprocess.CompletedProcess[str]:
    """Run a test against the package in another folder; it must not be the one under test."""
    environment = os.environ | {"PYTHONPATH": str(package), "LOGBUS_TEST_INSTALLED": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--tb=line", str(TESTS / test[0]), "-k", test[1]],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=TESTS.parent,
        timeout=200,
    )
