"""Files of lines that several hosts append to, and requests to a running job.

Records of a run whose directory is on a network file system are on the nodes. So an agent copies the requests of users
from that directory to its node, where its ranks read them.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from traincope.private_files import private, read_regular
from traincope.store.layout import LEVEL_FILE, PEER_FILES, REQUESTS_FILE, attempt_directory
from traincope.store.lines import parse
from traincope.whole_files import write_whole

MAX_LEVEL_BYTES = 16
MAX_PEERS = 65_536
MAX_LINES_BYTES = 16 << 20
"""Larger files of requests are not read: any user may write them."""


def missing_lines(local: bytes, there: bytes) -> bytes:
    """Complete lines of `local` that are not among those of `there`, in order."""
    known = set(there.split(b"\n"))
    return b"".join(line + b"\n" for line in local.split(b"\n")[:-1] if line and line not in known)


def with_lines(there: bytes, added: bytes) -> bytes:
    """Content with added lines. An incomplete last line is cut off."""
    return there[: there.rfind(b"\n") + 1] + added


def renumbered(content: bytes, attempts: Mapping[int, int]) -> bytes:
    """Lines whose `attempt` has another number at the destination, with that number."""
    if all(local == number for local, number in attempts.items()):
        return content
    return b"".join(_renumbered(line, attempts) + b"\n" for line in content.split(b"\n")[:-1])


def pull_requests(named: Path, run: Path, *, attempt: int) -> None:
    """Copy what users and other hosts wrote to the named run directory to the run on this node.

    Raises OSError if a directory cannot be used.
    """
    _pull_level(named / LEVEL_FILE, run / LEVEL_FILE)
    requests = named / REQUESTS_FILE
    if requests.is_file() and requests.stat().st_size <= MAX_LINES_BYTES:
        local = run / REQUESTS_FILE
        new = missing_lines(requests.read_bytes(), local.read_bytes() if local.exists() else b"")
        if new:
            with open(local, "ab", opener=private) as file:
                file.write(new)
    here = attempt_directory(run, attempt)
    for number, peer in enumerate(attempt_directory(named, attempt).glob(PEER_FILES)):
        if number < MAX_PEERS and not (here / peer.name).exists():
            write_whole(here / peer.name, peer.read_bytes())


def push_addresses(run: Path, named: Path, *, attempt: int, host_name: str) -> None:
    """Copy the address at which this host's agent listens to the named directory. Raises OSError."""
    for peer in attempt_directory(run, attempt).glob(PEER_FILES):
        target = attempt_directory(named, attempt) / peer.name
        if host_name in peer.name and target.parent.is_dir() and not target.exists():
            write_whole(target, peer.read_bytes())


def _pull_level(there: Path, here: Path) -> None:
    try:
        level = read_regular(there, last_bytes=MAX_LEVEL_BYTES)
    except FileNotFoundError:
        here.unlink(missing_ok=True)
        return
    before = None
    with suppress(FileNotFoundError):
        before = here.read_bytes()
    if level != before:
        write_whole(here, level)


def _renumbered(line: bytes, attempts: Mapping[int, int]) -> bytes:
    raw = parse(line.decode(errors="replace"))
    if not isinstance(raw, dict) or raw.get("attempt") not in attempts:
        return line
    return json.dumps({**raw, "attempt": attempts[raw["attempt"]]}).encode()
