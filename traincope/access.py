"""Access to traincope's HTTP servers. Other machines reach a server only with TLS and a password."""

import ssl
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from traincope.errors import ConfigError

LOCALHOST = "localhost"
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How clients reach a server."""

    certificate: Path | None = None
    """PEM file. None: without TLS."""
    key: Path | None = None
    """PEM file of the certificate's private key."""
    users: Mapping[str, str] | None = None
    """User -> password. None: without authentication."""

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    def check(self, address: str, *, remedy: str) -> None:
        """Raise ConfigError if a server at `address` would be open to other machines, or with half of a TLS key.

        `remedy`: what sets certificate, key and passwords.
        """
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(f"HTTPS needs both a certificate and its key; set {remedy}")
        if not (address == LOCALHOST or is_loopback(address)) and (self.certificate is None or self.users is None):
            raise ConfigError(
                f"{address} can be reached from other machines, so it needs a certificate and a password; "
                f"set {remedy}, or listen on 127.0.0.1"
            )

    def tls(self) -> ssl.SSLContext | None:
        """Context of the server; None without TLS. Raises ConfigError if the files are no certificate with its key."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(certfile=str(self.certificate), keyfile=str(self.key))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{self.certificate} and {self.key} are not a certificate and its key: {error}"
            ) from error
        return context

    def guarded(self, application: Application) -> Application:
        """The application behind basic authentication (RFC 7617), or as it is if there are no users."""
        users = self.users
        if users is None:
            return application

        def guarded(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            if _is_authorized(request.get("HTTP_AUTHORIZATION", ""), users):
                return application(request, respond)
            respond("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="traincope", charset="UTF-8"')])
            return [b"basic authentication is required\n"]

        return guarded


OPEN = Access()
"""For servers on loopback."""


def is_loopback(address: str) -> bool:
    """True for an address on loopback; False for others, and for names."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def read_users(path: Path) -> dict[str, str]:
    """User -> password, from a file with lines `user:password`. Raises ConfigError for any other file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text; write one user:password per line") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give a file that this user may read") from error
    users = {}
    for line in lines:
        user, colon, password = line.partition(":")
        if line.strip() and not (user and colon and password):
            raise ConfigError(f"{path} has a line that is not user:password; correct it")
        if line.strip():
            users[user] = password
    if not users:
        raise ConfigError(f"{path} has no users; add a line user:password")
    return users


def _is_authorized(header: str, users: Mapping[str, str]) -> bool:
    scheme, _, encoded = header.partition(" ")
    try:
        user, _, password = b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # neither base64 nor ASCII
        return False
    expected = users.get(user.decode(errors="replace"), "")
    return scheme.lower() == "basic" and bool(expected) and compare_digest(expected.encode(), password)
