"""Ways to start a training, and the company that it may have: each is run twice, bare and under `traincope run`."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from traincope.events import CLEAN, Kind
from traincope.store import read_run

TRAINING = str(Path(__file__).parent / "training.py")
NOTEBOOK = str(Path(__file__).parent / "notebook.py")
STEPS = 6
TIMEOUT_SECONDS = 400.0
SETTINGS = {"OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "off", "TRAINCOPE_BUDGET": "none", "TRAINCOPE_METRICS": "off"}

NUMBERS = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9]+"

Words = Callable[[str, str], list[str]]
"""(Python, folder of the losses) -> the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A row of the table in docs/start/launchers.md."""

    name: str
    words: Words
    around: tuple[str, ...] = ()
    """Command that starts the whole in other surroundings."""
    variables: dict[str, str] = field(default_factory=dict)
    ranks: int = 2
    unrecorded: str = ""
    """A further sentence of `traincope run`: what is not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str
    losses: dict[str, str]
    """Rank -> its losses in hexadecimal."""


def torchrun(*words: str) -> Words:
    return lambda python, folder: [
        *(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAINING, folder, *words)
    ]


def plain(*words: str) -> Words:
    return lambda python, folder: [python, TRAINING, folder, *words]


def run(launch: Launch, folder: Path, *, python: str, out: Path | None = None) -> Outcome:
    """Run it in `folder`, under `traincope run` if `out` is given."""
    folder.mkdir(parents=True)
    command = launch.words(python, str(folder))
    if out is not None:
        command = [python, "-m", "traincope.cli.main", "run", "--out", str(out), "--", *command]
    ended = subprocess.run(
        [*launch.around, *command],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **SETTINGS, "SPAWN_PORT": str(free_port()), **launch.variables},
        cwd=folder,
    )
    losses = {path.name: path.read_text() for path in folder.iterdir() if path.name.isdecimal()}
    out_text, err_text = (text.replace(str(folder), "FOLDER") for text in (ended.stdout, ended.stderr))
    return Outcome(code=ended.returncode, out=out_text, err=err_text, losses=losses)


def check(launch: Launch, folder: Path, *, python: str = sys.executable) -> None:
    """The recorded training is the bare one, and its record is whole."""
    out = folder / "run"
    bare, recorded = (
        run(launch, folder / "bare", python=python),
        run(launch, folder / "recorded", python=python, out=out),
    )
    assert bare.code == 0, bare.err
    assert (recorded.code, recorded.losses) == (bare.code, bare.losses), recorded.err
    assert len(bare.losses) == launch.ranks
    assert plain_lines(recorded.out) == plain_lines(bare.out)
    assert plain_lines(recorded.err) == plain_lines(bare.err)
    printed = [line for line in recorded.err.splitlines() if line.startswith("traincope: ")]
    assert printed[0].startswith(f"traincope: recorded {launch.ranks} rank"), printed
    assert ", 2 times" not in printed[0]
    assert launch.unrecorded in recorded.err
    assert ("not recorded" in recorded.err) == bool(launch.unrecorded)
    records = read_run(out)
    assert (records.attempts, records.problems) == (1, ())
    assert {rank.rank: rank.info.ending for rank in records.ranks} == dict.fromkeys(range(launch.ranks), CLEAN)
    for rank in records.ranks:
        main = rank.thread("main")
        optimizer = [rank.name(int(number)) for number in main["name"][main["kind"] == Kind.PHASE]].count("SGD")
        assert optimizer == STEPS
        assert len(main[main["kind"] == Kind.STEP]) >= STEPS


OUTCOME = re.compile(r"^traincope: recorded .*?^traincope: next: [^\n]*\n", re.MULTILINE | re.DOTALL)
"""The end of `traincope run`: its lines on the screen."""


def plain_lines(text: str) -> list[str]:
    """The lines of the training and its launcher, without numbers (times, process ids, ports), in any order."""
    theirs = re.sub(OUTCOME, "", text)
    lines = (line for line in theirs.splitlines() if not line.startswith("traincope: "))
    return sorted(re.sub(NUMBERS, "0", line) for line in lines)
