"""Tests of the TLS context of a broker's listener."""

from __future__ import annotations

import ssl
from pathlib import Path

from support.certificates import write_pem

from broker_lite.config.listeners import TlsSettings
from broker_lite.net.contexts import server_context


def test_tls_1_2_has_only_ecdhe_with_aead_ciphers_and_no_renegotiation(tmp_path: Path) -> None:
    pem = write_pem(tmp_path)
    versions = "TLSv1.2,TLSv1.3"
    context = server_context(
        TlsSettings("", pem.certificate, "", "", "none", versions, "DEFAULT", "https")
    )
    of_tls_1_2 = [each for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert of_tls_1_2
    for each in of_tls_1_2:
        assert each["name"].startswith("ECDHE-") and each["aead"], each["name"]
    assert context.options & ssl.OP_NO_RENEGOTIATION
