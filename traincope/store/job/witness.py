"""Witness copies: the last records of another host's ranks, as its agent sent them, and when that host was last heard.

    attempt-000/witness/HOST-by-WITNESS/heard.json   the host, its witness, and when the host was last heard
    attempt-000/witness/HOST-by-WITNESS/rank-00001/  the rank's last records, in the form of an ordinary rank directory
    attempt-000/compared/HOST/rank-00001/            the same of a rank whose collectives HOST's agent compared

A witness is the agent of another host. Its copies are the only evidence if the host and its run directory are lost.
Several witnesses of a host may share a run directory.
Each agent compares its ranks with the copies. It keeps both sides of the first mismatch: later copies replace the ones
that show it.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from traincope.errors import RunDirectoryError
from traincope.store.layout import COMPARED_DIRECTORY, HEARD_FILE, WITNESS_DIRECTORY
from traincope.store.lines import read_object
from traincope.topology import Host
from traincope.whole_files import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Signs of life of one host, as its witness heard them."""

    host: Host
    witness: Host
    heard_wall_ns: int
    """When the host was last heard, by the wall clock of the witness."""
    silent_ns: int
    """How long the witness then listened without hearing the host, by its monotonic clock."""
    farewell: bool = False
    """The host's agent ended by itself, and reported so."""
    closed: bool = False
    """The host's kernel closed the connection: the agent had ended, and the host was still alive."""


def witness_directory(attempt: Path, host: Host, *, witness: Host) -> Path:
    """Directory of one witness' copies of one host."""
    return attempt / WITNESS_DIRECTORY / f"{file_name_of(host)}-by-{file_name_of(witness)}"


def compared_directory(attempt: Path, host: Host) -> Path:
    """Directory of the mismatch that the agent of this host saw. It appears at once, with all ranks."""
    return attempt / COMPARED_DIRECTORY / file_name_of(host)


def compared_by_hosts(attempt: Path) -> list[Path]:
    """The directories of all mismatches that agents saw."""
    return sorted((attempt / COMPARED_DIRECTORY).glob("[!.]*"))


def file_name_of(host: Host) -> str:
    """Name of a file about a host. A host's name never becomes a path as it is."""
    digest = blake2b(f"{host.name}\n{host.boot_id}".encode(), digest_size=4).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', host.name)[:64]}-{digest}"


def witnessed_hosts(attempt: Path) -> Iterator[tuple[Heard, Path]]:
    """Each witnessed host and the directory of its copies. Notes that cannot be read are left out."""
    for path in sorted((attempt / WITNESS_DIRECTORY).glob(f"*/{HEARD_FILE}")):
        heard = _read_heard(path)
        if heard is not None:
            yield heard, path.parent


def write_heard(directory: Path, heard: Heard) -> None:
    """Replace the note about a host. Raises OSError."""
    write_json(directory / HEARD_FILE, asdict(heard))


def _read_heard(path: Path) -> Heard | None:
    try:
        raw = read_object(path)
    except RunDirectoryError:
        return None
    host, witness = _host(raw.get("host")), _host(raw.get("witness"))
    heard_wall_ns, silent_ns = raw.get("heard_wall_ns"), raw.get("silent_ns")
    if host is None or witness is None or type(heard_wall_ns) is not int or type(silent_ns) is not int:
        return None
    return Heard(
        host=host,
        witness=witness,
        heard_wall_ns=heard_wall_ns,
        silent_ns=silent_ns,
        farewell=raw.get("farewell") is True,
        closed=raw.get("closed") is True,
    )


def _host(raw: Any) -> Host | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not isinstance(raw.get("boot_id"), str):
        return None
    return Host(name=raw["name"], boot_id=raw["boot_id"])
