"""Files by which Prometheus and people find the agent's URL: a target file on the node, a note in the run directory.

The target files of all jobs of a user and node are in one directory, for one pattern of `file_sd_configs`:
`/dev/shm/traincope-1000/*.json` of the user 1000. Only this user may write there: a server that reads targets from a
directory of all users scrapes what anyone of them names. If nodes share a directory, the files of all nodes are there.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from traincope.private_files import check_owner
from traincope.store.layout import host_in_a_name, metrics_file
from traincope.whole_files import write_whole

DIRECTORY_VARIABLE = "TRAINCOPE_TARGETS"
"""Environment variable: another directory for target files."""
PID_LABEL, HOST_LABEL = "__meta_traincope_pid", "__meta_traincope_host"
"""Labels that show whose file it is. Prometheus drops labels with this prefix."""
ANY_ADDRESS = ("0.0.0.0", "::")
FOR_ALL_READERS = 0o644
"""Mode of a target file: Prometheus runs as another user. /proc/net/tcp shows the same address to everyone."""


class Note:
    """File that exists as long as its agent, if it can be written."""

    def __init__(self, path: Path, content: object, *, mode: int | None = None) -> None:
        """`mode`: None for that of a run's files."""
        self.path, self._mode = path, mode
        self._text = json.dumps(content, indent=2) + "\n"

    def write(self) -> None:
        """Write the file atomically. Raises OSError."""
        write_whole(self.path, self._text.encode(), mode=self._mode)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


def target(directory: Path, *, job: str, host: str, where: str) -> Note:
    """Target file for `file_sd_configs`. `where`: the served URL.

    Raises OSError if the directory is not this user's, or if others may write to it.
    """
    check_owner(directory)
    url = urlsplit(where)
    address = socket.gethostname() if url.hostname in ANY_ADDRESS else url.netloc.rpartition(":")[0]
    labels = {PID_LABEL: str(os.getpid()), HOST_LABEL: host, "__scheme__": url.scheme}
    entry = {"targets": [f"{address}:{url.port}"], "labels": labels}
    return Note(directory / f"{job}-{host_in_a_name(host)}.json", [entry], mode=FOR_ALL_READERS)


def announcement(run: Path, *, host: str, served: dict[str, str]) -> Note:
    """Note in the run directory: exporter -> URL."""
    return Note(run / metrics_file(host), {"host": host, "pid": os.getpid(), **served})


def remove_stale(directory: Path, *, host: str) -> None:
    """Remove target files that killed agents of this user on this host left."""
    for path in directory.glob(f"traincope-{os.getuid()}-*.json"):
        pid = _pid(path, host=host)
        if pid is not None and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                path.unlink()


def _pid(path: Path, *, host: str) -> int | None:
    """Process id of the file's agent; None if it is another kind of file, or of another host."""
    try:
        labels = json.loads(path.read_text())[0]["labels"]
        return int(labels[PID_LABEL]) if labels[HOST_LABEL] == host else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
