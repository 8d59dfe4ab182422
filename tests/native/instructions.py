"""python -m tests.native.instructions: instructions of each native hook under callgrind, with budgets.

They do not depend on what else runs on the machine. A hook's own are those of a call with it minus those of the bare
call; torch's code that it calls counts, as the callback of a work's future. Exits with 1 if a hook is over its budget.
Without valgrind or a compiler nothing is measured; with CI=true that fails too.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from traincope.native.build import compile_with_torch, find_compiler
from traincope.native.installed import SOURCES

SOURCE = Path(__file__).with_name("instructions.cpp")
CALLS = 1_000
"""Number of calls of each part of the program."""
TRIGGER, TOTAL = "desc: Trigger: Client Request: ", "totals: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A hook of the native recorder: the part of the program with it, and the part without it."""

    name: str
    part: str
    without: str = ""
    budget: int


HOOKS = (
    Hook(name="collective", part="collective", without="bare collective", budget=1_850),
    Hook(name="collective without detail", part="collective without detail", without="bare collective", budget=175),
    Hook(name="wait, without its way from Python", part="collective and wait", without="collective", budget=345),
    Hook(name="wait for an unknown work, the same", part="wait for an unknown work", budget=35),
)


def main() -> int:
    missing = [name for name, path in (("valgrind", shutil.which("valgrind")), ("g++", find_compiler())) if not path]
    if missing:
        print(f"not measured: {' and '.join(missing)} not installed (apt-get install {' '.join(missing)})")
        return int(os.environ.get("CI") == "true")
    with tempfile.TemporaryDirectory() as directory:
        counts = count(Path(directory))
    print(f"Instructions of a call's hook (torch {torch.__version__})")
    over = [hook for hook in HOOKS if not show(hook, counts)]
    return int(bool(over))


def count(directory: Path) -> Mapping[str, int]:
    """Run the program under callgrind. Returns the instructions of one call of each of its parts."""
    program, out = directory / "instructions", directory / "out"
    libraries = Path(torch.__file__).parent / "lib"
    compile_with_torch(SOURCE, program, f"-I{SOURCES}", f"-Wl,-rpath,{libraries}")
    command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"the program ended with {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}")
    counts = {}
    for path in directory.glob("out.*"):
        lines = path.read_text().splitlines()
        (part,) = (line.removeprefix(TRIGGER) for line in lines if line.startswith(TRIGGER))
        (total,) = (re.sub(TOTAL, "", line) for line in lines if line.startswith(TOTAL))
        counts[part] = round(int(total) / CALLS)
    return counts


def show(hook: Hook, counts: Mapping[str, int]) -> bool:
    """Print a hook's row. Returns whether it is within its budget."""
    own = counts[hook.part] - (counts[hook.without] if hook.without else 0)
    state = "within" if own <= hook.budget else "MISSED"
    print(f"  {hook.name:36}{own:8,} of {hook.budget:6,}  {state}")
    return own <= hook.budget


if __name__ == "__main__":
    sys.exit(main())
