"""Names of the files in a run directory, in one place."""

import re
from collections.abc import Iterable
from pathlib import Path

RUN_FILE = "run.json"
RANK_FILE = "rank.json"
NAMES_FILE = "names.jsonl"
GROUPS_FILE = "groups.jsonl"
DETAILS_FILE = "details.jsonl"
FATAL_FILE = "signal-fatal.txt"
"""Stacks at a fatal signal (SIGSEGV, SIGABRT, ...), whose name is its first line."""
LEVEL_FILE = "level"
"""A digit in it is the level a running job shall record at."""
ROWS_FILE = "rows.jsonl"
"""A rank's ledger, a finished step a line (`rows.py`)."""
AGENT_LOG = "agent.log"
"""What the node's agent had to say, with the rank that started it."""
METRICS_FILES = "metrics-*.json"
"""Where the numbers of a running job are served, a file a node."""
TILES_DIRECTORY = "tiles"
"""The run cut up for a viewer (`tiles.py`), by the last agent of a job that is over."""
SEGMENT, COMPACTED = ".seg", ".parquet"
"""How the files of records end: as they are written, and as the node's agent keeps them."""
OWN_THREAD = re.compile(r"(main|thread-\d+)-\d+")
LAUNCHER_FILE = "launcher.jsonl"
"""What the launcher noted of processes that did not end well."""
PROVISIONAL = "provisional-"
"""What a directory is called whose rank and attempt are not known yet."""


def attempt_directory(run: Path, attempt: int) -> Path:
    return run / f"attempt-{attempt:03d}"


def rank_directory(run: Path, *, attempt: int, rank: int) -> Path:
    return attempt_directory(run, attempt) / f"rank-{rank:05d}"


def segment_path(directory: Path, *, thread: str, index: int) -> Path:
    return directory / f"{thread}-{index:05d}.seg"


def records_of(rank: Path, *, thread: str | None = None) -> list[Path]:
    """The files of a rank's records, or of one thread's, each part once: where it is there in both forms, compacted."""
    wanted = "*" if thread is None else f"{thread}-*"
    compacted = {path.stem: path for path in rank.glob(wanted + COMPACTED) if OWN_THREAD.fullmatch(path.stem)}
    written = {path.stem: path for path in rank.glob(wanted + SEGMENT)}
    return in_order((written | compacted).values())


def in_order(segments: Iterable[Path]) -> list[Path]:
    """Thread by thread, as they were begun: the one after 99999 has a digit more. What is no segment comes first."""
    return sorted(segments, key=thread_and_index)


def thread_and_index(path: Path) -> tuple[str, int]:
    """Of a segment, by its name; -1 for what is none."""
    thread, _, index = path.stem.rpartition("-")
    return thread, int(index) if index.isdecimal() else -1


def signal_file(name: str) -> str:
    """Where the stacks lie that a signal of that name found; empty until it came."""
    return f"signal-{name}.txt"


def window_file(step: int) -> str:
    """The kernel trace of one step."""
    return f"kernels-step-{step:08d}.json"


def trace_file(number: int) -> str:
    """A kernel trace that was imported (`traces.py`)."""
    return f"trace-{number:03d}.npz"


def traces_of(rank: Path) -> list[Path]:
    """A rank's kernel traces: those that were imported, and those that the recorder had written of single steps."""
    return sorted((*rank.glob("trace-*.npz"), *rank.glob("kernels-step-*.json")))


def window_step(path: Path) -> int | None:
    """The step of a `window_file`."""
    return _number(path, r"kernels-step-(\d+)\.json")


def attempt_number(path: Path) -> int | None:
    return _number(path, r"attempt-(\d+)")


def rank_number(path: Path) -> int | None:
    return _number(path, r"rank-(\d+)")


def _number(path: Path, pattern: str) -> int | None:
    match = re.fullmatch(pattern, path.name)
    return int(match.group(1)) if match else None
