"""A recorded run as one to commit.

`python -m evaluation.gallery.committed RUN DIRECTORY` copies it with other paths.
"""

import shutil
import sys
from pathlib import Path

from traincope.events import RECORD_BYTES
from traincope.store.layout import SEGMENT
from traincope.store.segments.segments import HEADER_BYTES

ROOT = Path(__file__).parents[2]
AGENT = ("agent.log", "rows.jsonl", "standing.json", "tiles")
LEFT_OUT = (*AGENT, "*.lock", "flight.json", "brief.json", "bell", "*.room", "checkpoints")
"""Files that the report does not need."""


def copy_to_commit(run: Path, target: Path) -> None:
    """Copy the run to `target`, without the paths of this machine and without room that killed ranks had reserved."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.suffix == SEGMENT:
            _trim(path)
        elif path.is_file():
            path.write_text(_elsewhere(path.read_text(), str(run.absolute().parent)))


def _trim(segment: Path) -> None:
    """Remove the room that a killed rank had reserved."""
    content = segment.read_bytes()
    records = -(-(len(content.rstrip(b"\0")) - HEADER_BYTES) // RECORD_BYTES)
    segment.write_bytes(content[: HEADER_BYTES + max(records, 0) * RECORD_BYTES])


def _elsewhere(text: str, directory: str) -> str:
    """The text with the paths of another machine."""
    paths = {
        f"{ROOT}/.venv": "/usr/local",
        directory: "/scratch",
        str(ROOT): "/opt/traincope",
        sys.base_prefix: "/usr",
    }
    for ours, theirs in paths.items():
        text = text.replace(ours, theirs)
    return text.replace("/tmp/", "/scratch/")


if __name__ == "__main__":
    copy_to_commit(*map(Path, sys.argv[1:]))
