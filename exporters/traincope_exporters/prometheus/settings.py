"""Settings of the metrics server from the job's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traincope.access import OPEN, Access, read_users
from traincope.errors import ConfigError

ADDRESS_VARIABLE = "TRAINCOPE_METRICS"
"""`off`, or address and port. Default `127.0.0.1:9400`; other addresses need the three variables below."""
CERTIFICATE_VARIABLE = "TRAINCOPE_METRICS_CERTIFICATE"
"""PEM file with the certificate. It enables HTTPS."""
KEY_VARIABLE = "TRAINCOPE_METRICS_KEY"
"""PEM file with the certificate's private key."""
PASSWORD_VARIABLE = "TRAINCOPE_METRICS_PASSWORD_FILE"
"""File with lines `user:password`. Only these users may scrape."""

OFF = ("off", "0", "no")
DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 9400


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Settings of the server."""

    address: str = DEFAULT_ADDRESS
    port: int = DEFAULT_PORT
    """First port to try; 0 for any free port."""
    access: Access = OPEN


def from_environment(environment: Mapping[str, str]) -> Serving | None:
    """Read the settings; None if the server is off. Raises ConfigError for settings that cannot be used."""
    value = environment.get(ADDRESS_VARIABLE, "")
    if value.lower() in OFF:
        return None
    address, port = _address(value) if value else (DEFAULT_ADDRESS, DEFAULT_PORT)
    passwords = _file(environment, PASSWORD_VARIABLE)
    access = Access(
        certificate=_file(environment, CERTIFICATE_VARIABLE),
        key=_file(environment, KEY_VARIABLE),
        users=None if passwords is None else read_users(passwords),
    )
    access.check(address, remedy=f"{CERTIFICATE_VARIABLE}, {KEY_VARIABLE} and {PASSWORD_VARIABLE}")
    return Serving(address=address, port=port, access=access)


def _address(value: str) -> tuple[str, int]:
    address, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            f"{ADDRESS_VARIABLE}={value} has no port; set address:port, for example 127.0.0.1:9400, or off"
        )
    return address.strip("[]") or DEFAULT_ADDRESS, int(port)


def _file(environment: Mapping[str, str], variable: str) -> Path | None:
    value = environment.get(variable)
    if not value:
        return None
    path = Path(value)
    if not os.access(path, os.R_OK) or not path.is_file():
        raise ConfigError(f"{variable}={value} cannot be read; give a file that this user may read")
    return path
