"""A real registry on loopback: Debian's `docker-registry`, plain, or with TLS and bearer tokens.

    with plain_registry(directory) as registry: …       # http://127.0.0.1:PORT
    with tls_registry(directory) as registry: …         # https://, tokens for ann (secret)

The token server is the tests' own, as registries have them: it answers `GET /token` with a signed
JWT for whoever proves with HTTP Basic that they are one of `users`, and with one that allows
nothing to anybody else. A name in such a registry is `127.0.0.1:PORT/namespace/model:tag`.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import json
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import NameOID

from .server import wait_for

PROGRAM = "docker-registry"

needs_registry = pytest.mark.skipif(
    shutil.which(PROGRAM) is None, reason=f"needs {PROGRAM} (apt install {PROGRAM})"
)

ISSUER = SERVICE = "tests"

_LISTENING = re.compile(r'listening on (127\.0\.0\.1:[0-9]+)[,"]')
"""What the program says once it listens."""


@dataclass(frozen=True, slots=True)
class RunningRegistry:
    """A registry that answers."""

    url: str
    host: str
    """What names in it begin with: `127.0.0.1:PORT`."""
    root: Path
    """Its storage."""
    process: subprocess.Popen[bytes]
    ca: Path | None = None
    """The certificate that its own and the token server's are signed with."""
    realm: str = ""
    """Address of the token server."""
    asked: list[TokenRequest] = field(default_factory=list)
    """What the token server was asked."""

    @property
    def realm_host(self) -> str:
        """Host and port of the token server."""
        return urlsplit(self.realm).netloc

    def access(self, user: str = "ann", password: str = "secret") -> dict[str, Any]:
        """What `Settings.registries` has to say, so that Pronk may pull and push here."""
        given = {"username": user, "password": password, "realm": self.realm_host}
        return {self.host: given}

    def blob(self, digest: str) -> Path:
        """Where the registry keeps a blob."""
        return self.root.joinpath(
            "docker", "registry", "v2", "blobs", "sha256", digest[:2], digest, "data"
        )


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A question to the token server."""

    user: str | None
    """Who proved to be who; None for nobody."""
    scopes: list[str]
    authorization: str
    """The header as it came."""


@contextlib.contextmanager
def plain_registry(directory: Path) -> Iterator[RunningRegistry]:
    """A registry that speaks plain HTTP and asks for nothing."""
    with _running(directory, {}) as registry:
        yield registry


@contextlib.contextmanager
def tls_registry(
    directory: Path, users: Mapping[str, str] | None = None
) -> Iterator[RunningRegistry]:
    """A registry behind TLS and bearer tokens, for `users` with their passwords."""
    ca = Authority(directory / "ca")
    certificate, key = ca.certificate(directory / "registry-tls")
    with _token_server(ca, users or {"ann": "secret"}) as (realm, asked):
        tls = {"certificate": str(certificate), "key": str(key)}
        auth = {
            "token": {
                "realm": realm,
                "service": SERVICE,
                "issuer": ISSUER,
                "rootcertbundle": str(ca.path),
            }
        }
        with _running(directory, {"tls": tls}, auth, ca.path, realm, asked) as registry:
            yield registry


@contextlib.contextmanager
def _running(
    directory: Path,
    listening: dict[str, Any],
    auth: dict[str, Any] | None = None,
    ca: Path | None = None,
    realm: str = "",
    asked: list[TokenRequest] | None = None,
) -> Iterator[RunningRegistry]:
    asked = [] if asked is None else asked
    root = directory / "registry"
    root.mkdir(parents=True)
    settings: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(root)}, "delete": {"enabled": True}},
        # Any port: one that was chosen before could be another server's by now.
        "http": {"addr": "127.0.0.1:0", **listening},
    }
    if auth:
        settings["auth"] = auth
    config = directory / "registry.yml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    log = directory / "registry.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "serve", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: _LISTENING.search(log.read_text()) or process.poll(), "the registry")
        said = _LISTENING.search(log.read_text())
        assert said, log.read_text()
        host = said[1]
        scheme = "https" if "tls" in listening else "http"
        yield RunningRegistry(f"{scheme}://{host}", host, root, process, ca, realm, asked)
    finally:
        process.terminate()
        process.wait()


class Authority:
    """A certificate authority of the tests' own, which also signs tokens."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.root = self._sign("tests' authority", self.key.public_key(), ca=True)
        self.path = directory / "ca.pem"
        self.path.write_bytes(self.root.public_bytes(serialization.Encoding.PEM))

    def certificate(self, directory: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """Files with a certificate for a server on `address`, and with its key."""
        directory.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._sign("tests' server", key.public_key(), address=address)
        paths = directory / "certificate.pem", directory / "key.pem"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def token(self, claims: dict[str, Any]) -> str:
        """A JWT, signed with ES256, whose chain of certificates is this authority's own."""
        chain = base64.b64encode(self.root.public_bytes(serialization.Encoding.DER)).decode()
        header = {"typ": "JWT", "alg": "ES256", "x5c": [chain]}
        signed = b".".join(_base64url(json.dumps(part).encode()) for part in (header, claims))
        r, s = utils.decode_dss_signature(self.key.sign(signed, ec.ECDSA(hashes.SHA256())))
        signature = _base64url(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return b".".join((signed, signature)).decode()

    def _sign(
        self, name: str, key: ec.EllipticCurvePublicKey, *, ca: bool = False, address: str = ""
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if ca else self.root.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if ca:
            usage = x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            )
            builder = builder.add_extension(usage, critical=True)
        if address:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())


@contextlib.contextmanager
def _token_server(
    ca: Authority, users: Mapping[str, str]
) -> Iterator[tuple[str, list[TokenRequest]]]:
    asked: list[TokenRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            scopes = [scope for given in query.get("scope", []) for scope in given.split()]
            authorization = self.headers.get("Authorization", "")
            user = _user(authorization, users)
            asked.append(TokenRequest(user, scopes, authorization))
            if authorization and user is None:
                self.send_error(401)
                return
            now = int(time.time())
            token = ca.token(
                {
                    "iss": ISSUER,
                    "aud": SERVICE,
                    "sub": user or "",
                    "iat": now,
                    "nbf": now - 60,
                    "exp": now + 300,
                    "jti": uuid4().hex,
                    "access": [_access(scope) for scope in scopes] if user else [],
                }
            )
            body = json.dumps({"token": token, "expires_in": 300}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    certificate, key = ca.certificate(ca.path.parent / "realm-tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _user(authorization: str, users: Mapping[str, str]) -> str | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    name, _, password = base64.b64decode(encoded).decode().partition(":")
    return name if name in users and users[name] == password else None


def _access(scope: str) -> dict[str, Any]:
    """`repository:library/model:pull,push` as a token's claim."""
    kind, _, rest = scope.partition(":")
    name, _, actions = rest.rpartition(":")
    return {"type": kind, "name": name, "actions": actions.split(",")}


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
