"""File names in a run directory."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

DEFAULT_ROOT = "traincope_runs"
"""Directory of runs whose directory is not given, below the working directory."""
RUN_FILE = "run.json"
RANK_FILE = "rank.json"
NAMES_FILE = "names.jsonl"
GROUPS_FILE = "groups.jsonl"
DETAILS_FILE = "details.jsonl"
STATE_CHECKS_FILE, OLD_STATE_CHECKS_FILE = "state-checks.jsonl", "state-checks-old.jsonl"
"""Checksums of a rank's parameters and optimizer state (`job/state_checks.py`)."""
FATAL_FILE = "signal-fatal.txt"
"""Stacks at a fatal signal (SIGSEGV, SIGABRT, ...); the first line is the signal's name."""
SIGNAL_FILES = "signal-*.txt"
STACKS_FILE = "stacks.txt"
"""Stacks that the rank writes when asked for them. It exists while the rank's process answers."""
FLIGHT_FILE = "flight.json"
"""torch's flight recorder of the rank at the latest request (`job/flight.py`)."""
BELL_FILE = "bell"
"""File by which the rank is asked for both. It exists while the rank answers (`job/bell.py`)."""
LOOKS_FILE = "looks.jsonl"
"""Looks of the node's agent at a rank's process while the job stood still (`job/looks.py`)."""
HANGS_FILE = "hangs.jsonl"
"""Settled answers about hangs, in the attempt's directory (`job/hang_notices.py`)."""
STACK_SAMPLES_FILES = "stacks-step-*.json"
"""Samples of the training thread's stack, one file per requested window (`segments/stack_samples.py`)."""
LEVEL_FILE = "level"
"""A digit: the level at which a running job records."""
REQUESTS_FILE = "requests.jsonl"
"""Requested windows of a running job, one per line (`job/requests.py`)."""
INJECTED_FILE = "injected.jsonl"
"""Faults that `--fault` injected, one per rank and line (`traincope.inject`). No analysis reads it."""
ROWS_FILE = "rows.jsonl"
"""A rank's ledger, one finished step per line (`rows.py`)."""
OLD_ROWS_FILE = "rows-old.jsonl.gz"
"""The older lines of a rank's ledger, compressed (`row_thinning.py`)."""
OPERATIONS_FILE = "operations.npz"
"""The table of operations that a run was imported from, in the attempt's directory (`operations.py`)."""
LOGBOOK_FILE = "logbook.csv"
"""The list of runs and interruptions that a run was imported from (`logbook.py`)."""
AGENT_LOG = "agent.log"
"""The agent's log, in the directory of the rank that started the agent."""
METRICS_FILES = "metrics-*.json"
"""Addresses of a running job's metrics, one file per node."""
SCALARS_FILES = "scalars-*.json"
"""Numbers of a running job's latest steps, one file per node, in the attempt's directory (`metrics/scalars.py`)."""
BRIEF_FILE = "brief.json"
"""The first finding and the MFU, as `traincope run` printed them at the end of the job, for `traincope ls`."""
TILES_DIRECTORY = "tiles"
"""Tiles for the viewer (`traincope.tiles`), written by the last agent of a finished job."""
SEGMENT, COMPACTED = ".seg", ".parquet"
"""Extensions of record files: as the recorder writes them, and as the node's agent compacts them."""
SEGMENT_STEM = re.compile(r"(main|thread-\d+)-\d+")
WITNESS_DIRECTORY = "witness"
"""Copies of the last records of other hosts' ranks, in the directory of the attempt (`job/witness.py`)."""
COMPARED_DIRECTORY = "compared"
"""Records that show a mismatch between ranks of several hosts, in the directory of the attempt (`job/witness.py`)."""
HEARD_FILE = "heard.json"
"""When a witnessed host was last heard."""
PEER_FILES = "peer-*.json"
"""Addresses at which the agents of an attempt listen for each other, one file per node."""
STANDING_FILE = "standing.json"
"""MFU of the latest steps and goodput, as the agent of the rank's host wrote them last."""
LAUNCHER_FILE = "launcher.jsonl"
"""Processes that did not end well, as the launcher saw them."""
PROVISIONAL = "provisional-"
"""Prefix of the directory of a process whose rank and attempt are not known yet."""


def attempt_directory(run: Path, attempt: int) -> Path:
    return run / f"attempt-{attempt:03d}"


def rank_directory(run: Path, *, attempt: int, rank: int) -> Path:
    return attempt_directory(run, attempt) / f"rank-{rank:05d}"


def segment_path(directory: Path, *, thread: str, index: int) -> Path:
    return directory / f"{thread}-{index:05d}.seg"


def record_files(rank: Path, *, thread: str | None = None) -> list[Path]:
    """Files of a rank's records, or of one thread's. A segment that exists in both forms appears once, compacted.

    Empty without the directory. Raises PermissionError if it may not be listed.
    """
    try:
        names = os.listdir(rank)
    except (FileNotFoundError, NotADirectoryError):
        return []
    begin = "" if thread is None else f"{thread}-"
    compacted, written = (
        {name.removesuffix(form): name for name in names if name.endswith(form) and name.startswith(begin)}
        for form in (COMPACTED, SEGMENT)
    )
    compacted = {stem: name for stem, name in compacted.items() if SEGMENT_STEM.fullmatch(stem)}
    return in_order(rank / name for name in (written | compacted).values())


def in_order(segments: Iterable[Path]) -> list[Path]:
    """Sort segments by thread and index; numerically, because the index after 99999 has one digit more. Other files
    come first.
    """
    return sorted(segments, key=thread_and_index)


def thread_and_index(path: Path) -> tuple[str, int]:
    """Thread and index from the name of a segment; index -1 for other files."""
    thread, _, index = path.stem.rpartition("-")
    return thread, int(index) if index.isdecimal() else -1


def metrics_file(host: str) -> str:
    """Name of the node's file with addresses of metrics."""
    return f"metrics-{host_in_a_name(host)}.json"


def scalars_file(host: str) -> str:
    """Name of the node's file with the numbers of the latest steps."""
    return f"scalars-{host_in_a_name(host)}.json"


def host_in_a_name(host: str) -> str:
    """Replace the characters of a host's name that a file's name should not have."""
    return re.sub(r"[^\w.-]", "_", host)


def signal_file(name: str) -> str:
    """File for the stacks at this signal; empty until the signal arrives."""
    return f"signal-{name}.txt"


def window_file(step: int) -> str:
    """Name of the kernel trace of one step."""
    return f"kernels-step-{step:08d}.json"


def stack_samples_file(step: int) -> str:
    """Name of the stack samples of the window that begins with this step."""
    return f"stacks-step-{step:08d}.json"


def step_of_samples(path: Path) -> int | None:
    """First step of the window of a `stack_samples_file`."""
    return _number(path, r"stacks-step-(\d+)\.json")


def memory_file(number: int) -> str:
    """Name of an imported snapshot of torch's allocator (`memory_snapshots.py`)."""
    return f"memory-{number:03d}.json"


def memory_files(rank: Path) -> list[Path]:
    """Imported snapshots of a rank."""
    return sorted(rank.glob("memory-*.json"))


def trace_file(number: int) -> str:
    """Name of an imported kernel trace (`traces.py`)."""
    return f"trace-{number:03d}.npz"


def trace_files(rank: Path) -> list[Path]:
    """Kernel traces of a rank: imported ones, and those of single steps that the recorder wrote."""
    return sorted((*rank.glob("trace-*.npz"), *rank.glob("kernels-step-*.json")))


def window_step(path: Path) -> int | None:
    """Step of a `window_file`."""
    return _number(path, r"kernels-step-(\d+)\.json")


def attempt_number(path: Path) -> int | None:
    return _number(path, r"attempt-(\d+)")


def rank_number(path: Path) -> int | None:
    return _number(path, r"rank-(\d+)")


def _number(path: Path, pattern: str) -> int | None:
    match = re.fullmatch(pattern, path.name)
    return int(match.group(1)) if match else None
