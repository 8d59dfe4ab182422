"""How a Prometheus, and people, find what an agent serves: a target file on the node, a note in the run directory.

The files of all jobs of a node lie side by side, for one pattern of `file_sd_configs`: `/dev/shm/traincope-*.json`.
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
PID_LABEL = "__meta_traincope_pid"
"""Prometheus drops labels that begin so; here it tells whose file it is."""
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


def target(directory: Path, *, job: str, where: str) -> Note:
    """For `file_sd_configs`; `where` is the URL that is served."""
    url = urlsplit(where)
    host = socket.gethostname() if url.hostname in EVERYWHERE else url.netloc.rpartition(":")[0]
    labels = {PID_LABEL: str(os.getpid()), "__scheme__": url.scheme}
    return Note(directory / f"{job}.json", [{"targets": [f"{host}:{url.port}"], "labels": labels}])


def announcement(run: Path, *, host: str, served: dict[str, str]) -> Note:
    """In the run directory: exporter -> URL."""
    name = re.sub(r"[^\w.-]", "_", host)
    return Note(run / f"metrics-{name}.json", {"host": host, "pid": os.getpid(), **served})


def sweep(directory: Path) -> None:
    """Remove target files of this user's agents that were killed."""
    for path in directory.glob(f"traincope-{os.getuid()}-*.json"):
        pid = _pid(path)
        if pid is not None and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                path.unlink()


def _pid(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_text())[0]["labels"][PID_LABEL])
    except (OSError, ValueError, LookupError, TypeError):
        return None
