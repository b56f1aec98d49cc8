"""An issuer of OAuth access tokens for tests, with an HTTPS server for keys and tokens."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from support.certificates import write_pem

ISSUER, AUDIENCE = "https://issuer.example", "logbus"
CREDENTIALS = "Basic Y2Fyb2w6b2YrY2Fyb2w="
"""The HTTP Basic credentials of client id carol with the secret 'of carol'."""


class Issuer:
    """An issuer of tokens with one key.

    ``lifetime_s`` is the lifetime, in seconds, of the tokens that ``serve`` issues.
    """

    def __init__(self, key_id: str = "first", lifetime_s: float = 600) -> None:
        self.key_id = key_id
        self.lifetime_s = lifetime_s
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.asked: list[str] = []
        """The paths that clients and brokers requested."""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """The status, headers and body that ``serve`` returns for further paths."""

    def key_set(self) -> bytes:
        row = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**row, "kid": self.key_id, "use": "sig"}]}).encode()

    def token(self, user: str = "carol", **claims: Any) -> str:
        """Return a signed token for a user.

        ``headers`` replaces the token's header. Claims with the value None are omitted.
        """
        headers = claims.pop("headers", {"kid": self.key_id})
        now = time.time()
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now - 1, "exp": now + 600}
        kept = {name: value for name, value in (given | claims).items() if value is not None}
        return jwt.encode(kept, self.key, "ES256", headers)


@contextmanager
def serve(issuer: Issuer, folder: Path) -> Iterator[str]:
    """Serve the paths ``/keys`` and ``/token`` of an issuer; yield the server's URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            found = issuer.answers.get(self.path)
            if found is None:
                found = 200, {}, issuer.key_set()
            self._answer(*found)

        def do_POST(self) -> None:
            issuer.asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != CREDENTIALS:
                self._answer(401, {}, b"{}")
                return
            ends = {"exp": time.time() + issuer.lifetime_s}
            found = {"access_token": issuer.token(**ends), "expires_in": issuer.lifetime_s}
            self._answer(200, {}, json.dumps(found).encode())

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    pem = write_pem(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem.certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
