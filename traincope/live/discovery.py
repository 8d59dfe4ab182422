"""How a Prometheus, and people, find what an agent serves: a target file on the node, a note in the run directory.

The files of all jobs of a node lie side by side, for one pattern of `file_sd_configs`: `/dev/shm/traincope-*.json`;
and those of all nodes, where the directory is one that they share.
"""

import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

DIRECTORY_VARIABLE = "TRAINCOPE_TARGETS"
"""Another directory for the target files."""
PID_LABEL, HOST_LABEL = "__meta_traincope_pid", "__meta_traincope_host"
"""Prometheus drops labels that begin so; here they tell whose file it is."""
EVERYWHERE = ("0.0.0.0", "::")


class Note:
    """A file that is there as long as its agent; where it cannot be written it is not there."""

    def __init__(self, path: Path, content: object) -> None:
        self.path = path
        self._text = json.dumps(content, indent=2) + "\n"

    def write(self) -> None:
        """Whole or not at all. Raises OSError."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            aside.unlink()
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._text)
        os.replace(aside, self.path)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


def target(directory: Path, *, job: str, host: str, where: str) -> Note:
    """For `file_sd_configs`; `where` is the URL that is served."""
    url = urlsplit(where)
    address = socket.gethostname() if url.hostname in EVERYWHERE else url.netloc.rpartition(":")[0]
    labels = {PID_LABEL: str(os.getpid()), HOST_LABEL: host, "__scheme__": url.scheme}
    entry = {"targets": [f"{address}:{url.port}"], "labels": labels}
    return Note(directory / f"{job}-{_in_a_name(host)}.json", [entry])


def announcement(run: Path, *, host: str, served: dict[str, str]) -> Note:
    """In the run directory: exporter -> URL."""
    return Note(run / f"metrics-{_in_a_name(host)}.json", {"host": host, "pid": os.getpid(), **served})


def sweep(directory: Path, *, host: str) -> None:
    """Remove target files of this user's agents on this host that were killed."""
    for path in directory.glob(f"traincope-{os.getuid()}-*.json"):
        pid = _pid(path, host=host)
        if pid is not None and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                path.unlink()


def _in_a_name(host: str) -> str:
    return re.sub(r"[^\w.-]", "_", host)


def _pid(path: Path, *, host: str) -> int | None:
    """None: it is no such file, or another host's, of whose processes nothing is known here."""
    try:
        labels = json.loads(path.read_text())[0]["labels"]
        return int(labels[PID_LABEL]) if labels[HOST_LABEL] == host else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
