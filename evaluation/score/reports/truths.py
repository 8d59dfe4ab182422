"""Programs with one known fault each, and their truths.

Those of this repository are in `programs/`, by theme, with a `truths.toml` in each folder. Other programs may be in a
folder next to the repository, with one `truth.json`.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
GIVEN = Path(__file__).parents[4] / "shared" / "cases" / "programs"
HEALTHY = "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a verdict must say about a program. It was written before the program first ran under traincope."""

    name: str
    program: Path
    nproc: int
    ranks: tuple[int, ...]
    """Ranks that the finding must name. Empty: it must accuse none."""
    item: str = "given"
    """Kind of defect that the program stands for: a letter, `healthy`, or `given`."""
    thread: str = ""
    """Public report with this mechanism, as owner/repository#number."""
    mechanism: str = ""
    truth: str = ""
    """The right answer in a few words."""
    wrong: str = ""
    """Answers that would be wrong."""
    words: str = ""
    """Regular expression that the finding's text must contain."""
    kind: str = ""
    """Regular expression that the finding's kind must contain."""
    top: int = 1
    """Number of findings to look at."""
    forbid_kind: str = ""
    forbid_words: str = ""
    unknown_ok: bool = False
    twice: bool = False
    """The program is launched twice into one run directory."""
    starts_ranks: bool = False
    """The program starts its ranks itself: `python` runs it, not `torchrun`."""
    gain: bool = False
    """The program writes the share of its time that its cause takes into the file `gain`. The finding must say it."""


def truths() -> list[Truth]:
    """Return the truths of all programs, ours first. Names are unique."""
    found = [*_ours(), *_given()]
    names = [truth.name for truth in found]
    assert len(set(names)) == len(names), "two programs have one name"
    return found


def _ours() -> Iterator[Truth]:
    for path in sorted(PROGRAMS.glob("*/truths.toml")):
        for name, fields in tomllib.loads(path.read_text()).items():
            yield _truth(name, path.with_name(f"{name}.py"), fields)


def _given() -> Iterator[Truth]:
    path = GIVEN / "truth.json"
    for name, fields in json.loads(path.read_text()).items() if path.exists() else ():
        words = {"thread": _line(GIVEN / name / "truth.txt", "Thread:"), "truth": fields.get("words", "")}
        yield _truth(name, GIVEN / name / "prog.py", {**words, **fields})


def _truth(name: str, program: Path, fields: dict[str, object]) -> Truth:
    return Truth(**{**fields, "name": name, "program": program, "ranks": tuple(fields["ranks"])})


def _line(path: Path, begin: str) -> str:
    """Return the first word after `begin`; empty if the file has no such line."""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(begin):
            return line.removeprefix(begin).split()[0].strip(",;")
    return ""
