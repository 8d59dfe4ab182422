"""Settings of the channel between agents, from the environment."""

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from traincope.access import LOCALHOST, is_loopback
from traincope.errors import ConfigError
from traincope.live.peers.network.members import MAX_PORT
from traincope.live.peers.network.sealing import parse_key, read_key
from traincope.record.session.options import WITNESS_VARIABLE, is_on

LISTEN_VARIABLE = "TRAINCOPE_PEER_LISTEN"
PEERS_VARIABLE = "TRAINCOPE_PEERS"
KEY_FILE_VARIABLE = "TRAINCOPE_PEER_KEY_FILE"
MEETING_VARIABLE = "MASTER_ADDR"
"""The host of rank 0, as torch's rendezvous knows it. Its agent introduces the others to each other."""
DEFAULT_PORT = 29_577
LOOPBACK = "127.0.0.1"
ANYWHERE = ("192.0.2.1", 9)
"""An address of TEST-NET-1 (RFC 5737): only the default route leads there, and nothing is sent."""
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """Settings of one agent."""

    key: bytes
    listen_host: str | None
    """None: the address of this host that faces the meeting host; without one, loopback."""
    port: int
    port_is_given: bool
    """False: any other port does as well if this one is taken."""
    known: tuple[Address, ...]
    """Addresses at which other agents may listen, the meeting host's last."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"{LISTEN_VARIABLE} has the impossible port {self.port}; give one up to {MAX_PORT}")


def peer_settings(environment: Mapping[str, str], *, key: str | None) -> PeerSettings | None:
    """Settings of this agent; None if it must keep to itself. `key`: of the job, from the rank that started the agent.

    A job on one host needs no witness. Raises ConfigError if a setting is impossible, or without a key.
    """
    if key is None and not is_on(environment.get(WITNESS_VARIABLE, "")):
        return None
    if _is_on_one_host(environment):
        return None
    host, port = _address(environment.get(LISTEN_VARIABLE, ""), variable=LISTEN_VARIABLE)
    meeting = environment.get(MEETING_VARIABLE) or None
    own_port = DEFAULT_PORT if port is None else port
    given = list(_addresses(environment.get(PEERS_VARIABLE, ""), default_port=own_port))
    return PeerSettings(
        key=_key(environment, key),
        listen_host=host or None,
        port=own_port,
        port_is_given=port is not None,
        known=(*given, *([(meeting, own_port)] if meeting else [])),
    )


def facing_address(settings: PeerSettings) -> str:
    """The address at which to listen: the one from which this host reaches the others. Looks up names.

    Debian gives a host's own name an address on loopback. On the meeting host the default route then decides.
    """
    if settings.listen_host is not None:
        return settings.listen_host
    for host, port in settings.known:
        address = _source_address(host, port)
        if address is not None and is_loopback(address) and not is_loopback(host) and host != LOCALHOST:
            address = _source_address(*ANYWHERE)
        if address is not None and not is_loopback(address):
            return address
    return LOOPBACK


def is_everywhere(address: str) -> bool:
    """True for the address of all interfaces, at which no other host reaches this one."""
    return ip_address(address).is_unspecified


def _source_address(host: str, port: int) -> str | None:
    """The address from which this host would connect there; None without a route."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: it only chooses the route
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_on_one_host(environment: Mapping[str, str]) -> bool:
    sizes = [environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    return sizes[0] == sizes[1] != "" and not environment.get(PEERS_VARIABLE)


def _key(environment: Mapping[str, str], key: str | None) -> bytes:
    path = environment.get(KEY_FILE_VARIABLE)
    if path:
        return read_key(Path(os.path.expanduser(path)))
    if key is None:
        raise ConfigError(
            f"witness copies need a key: rank 0 gives one if it has {WITNESS_VARIABLE}=on too; otherwise set "
            f"{KEY_FILE_VARIABLE} to a file of mode 600 with 64 hexadecimal digits, the same on all hosts"
        )
    return parse_key(key)


def _addresses(text: str, *, default_port: int) -> Iterator[Address]:
    for word in text.replace(",", " ").split():
        host, port = _address(word, variable=PEERS_VARIABLE)
        if not host:
            raise ConfigError(f"{PEERS_VARIABLE} has {word!r} without a host; give HOST:PORT")
        yield host, default_port if port is None else port


def _address(text: str, *, variable: str) -> tuple[str, int | None]:
    """Split HOST, HOST:PORT, :PORT, [HOST] or [HOST]:PORT. Raises ConfigError."""
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    if colon and not port.isdecimal():
        raise ConfigError(f"{variable} has {text!r}; give HOST:PORT")
    return host.strip("[]"), int(port) if port else None
