"""Where the metrics are served, as the environment of the job says."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import ConfigError

ADDRESS_VARIABLE = "TRAINCOPE_METRICS"
"""`off`, or an address and a port: `127.0.0.1:9400` unless told, `0.0.0.0:9400` for all interfaces."""
CERTIFICATE_VARIABLE = "TRAINCOPE_METRICS_CERTIFICATE"
"""A PEM file: then it is served by HTTPS."""
KEY_VARIABLE = "TRAINCOPE_METRICS_KEY"
"""The PEM file of its private key."""
PASSWORD_VARIABLE = "TRAINCOPE_METRICS_PASSWORD_FILE"
"""A file of lines `user:password`: then who scrapes must be one of them."""

OFF = ("off", "0", "no")
DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 9400


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How to serve."""

    address: str = DEFAULT_ADDRESS
    port: int = DEFAULT_PORT
    """The first to try; 0: any that is free."""
    certificate: Path | None = None
    key: Path | None = None
    users: Mapping[str, str] | None = None
    """User -> password; None: everybody may scrape."""


def from_environment(environment: Mapping[str, str]) -> Serving | None:
    """None: it is off. Raises ConfigError, for what is asked for and cannot be read."""
    told = environment.get(ADDRESS_VARIABLE, "")
    if told.lower() in OFF:
        return None
    address, port = _address(told) if told else (DEFAULT_ADDRESS, DEFAULT_PORT)
    certificate, key = _file(environment, CERTIFICATE_VARIABLE), _file(environment, KEY_VARIABLE)
    if (certificate is None) != (key is None):
        raise ConfigError(f"HTTPS needs both {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}; set the other one too")
    passwords = _file(environment, PASSWORD_VARIABLE)
    return Serving(
        address=address,
        port=port,
        certificate=certificate,
        key=key,
        users=None if passwords is None else _users(passwords),
    )


def _address(told: str) -> tuple[str, int]:
    address, _, port = told.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{ADDRESS_VARIABLE}={told} has no port; say address:port, as 127.0.0.1:9400, or off")
    return address.strip("[]") or DEFAULT_ADDRESS, int(port)


def _file(environment: Mapping[str, str], variable: str) -> Path | None:
    told = environment.get(variable)
    if not told:
        return None
    path = Path(told)
    if not os.access(path, os.R_OK) or not path.is_file():
        raise ConfigError(f"{variable}={told} cannot be read; give a file that this user may read")
    return path


def _users(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8; write lines user:password into it") from error
    users = {}
    for line in lines:
        user, colon, password = line.partition(":")
        if line.strip() and not (user and colon and password):
            raise ConfigError(f"{path} has a line that is not user:password; mend it")
        if line.strip():
            users[user] = password
    if not users:
        raise ConfigError(f"{path} names nobody; write a line user:password into it")
    return users
