"""Journal of what arrived at a destination, so that the next agent of the node continues where one was killed.

The journal is written after the files that it names. Without it, all files are shipped again, which changes nothing.
"""

import json
import secrets
from hashlib import blake2b
from pathlib import Path

from traincope.store.layout import attempt_directory
from traincope.store.lines import parse
from traincope.topology import Host
from traincope.whole_files import write_whole

VERSION = 1


class Journal:
    """Name of a file -> its state when it was shipped."""

    def __init__(self, path: Path) -> None:
        """Read the journal; empty if there is none that can be read. Raises OSError."""
        self._path = path
        raw = parse(path.read_text(errors="replace")) if path.exists() else None
        values = raw if isinstance(raw, dict) and raw.get("version") == VERSION else {}
        files, attempts = values.get("files", {}), values.get("attempts", {})
        self.token = str(values.get("token") or secrets.token_hex(4))
        """Names this place on the node: containers of one host may record in places of their own."""
        self.shipped = {str(name): str(state) for name, state in files.items()}
        self.attempts = {int(local): int(number) for local, number in attempts.items()}
        """Number of an attempt on this node -> its number at the destination."""

    def write(self) -> None:
        """Replace the file. Raises OSError."""
        content = {"version": VERSION, "token": self.token, "attempts": self.attempts, "files": self.shipped}
        write_whole(self._path, json.dumps(content).encode())


def journal_path(run: Path, *, attempt: int, place: str, host: Host) -> Path:
    """Path of the journal of one host, attempt and destination. Attempts of a node may overlap at their ends."""
    digest = blake2b(f"{host.name}/{host.boot_id}\n{place}".encode(), digest_size=6).hexdigest()
    return attempt_directory(run, attempt) / f".shipped-{digest}.json"
