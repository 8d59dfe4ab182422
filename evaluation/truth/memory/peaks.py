"""python -m evaluation.truth.memory.peaks [CASE ...]: peak of memory in real trainings, and by `plan.allocator`.

Each rank counts the bytes of posix_memalign, from which torch takes every tensor on a CPU, in all of its threads
(`allocated.c`, preloaded). The formulas contain no number that is fitted. Ranks of a pipeline are compared one by one,
other ranks with the fullest. Exits with 1 if a row is off by more than 5 %.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.truth.memory.cases import CASES, TEXT, configured
from traincope.engine.model.allocation import allocated_model
from traincope.plan.allocator.rank import rank_peaks

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).parent / "allocated.c"
ALLOWED = 0.05
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Peak of one rank of the pipeline."""

    case: str
    rank: int
    measured: int
    computed: int

    @property
    def error(self) -> float:
        return self.computed / self.measured - 1

    def __str__(self) -> str:
        sizes = f"{self.measured / MIB:.1f} MiB | {self.computed / MIB:.1f} MiB"
        return f"| {self.case} | {self.rank} | {sizes} | {self.error:+.2%} |"


def rows(case: str, directory: Path) -> Iterator[Row]:
    """Rows of one training."""
    text = directory / "text.txt"
    text.write_text(TEXT)
    config = configured(case, text)
    computed = rank_peaks(allocated_model(config))
    measured = measure(case, text, ranks=config.parallel.world_size, directory=directory)
    peers = len(measured) // len(computed)  # stages are outermost
    for peak in computed:
        fullest = max(measured[peak.rank * peers : (peak.rank + 1) * peers])
        yield Row(case=case, rank=peak.rank, measured=fullest, computed=peak.peak_bytes)


def measure(case: str, text: Path, *, ranks: int, directory: Path) -> list[int]:
    """Peak of each rank in bytes."""
    library, out = directory / "allocated.so", directory / case
    if not library.exists():
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
    out.mkdir()
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    variables = {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "off"}
    ended = subprocess.run(
        [*launched, "-m", "evaluation.truth.memory.rank", case, text, out],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [int((out / str(rank)).read_text()) for rank in range(ranks)]


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"unknown cases: {', '.join(unknown)}; choose from {', '.join(CASES)}", file=sys.stderr)
        return 2
    print("| training | rank | measured | computed | error |\n|---|---|---|---|---|", flush=True)
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in names or CASES:
            for row in rows(name, Path(directory)):
                print(row, flush=True)
                found.append(row)
    missed = sum(abs(row.error) > ALLOWED for row in found)
    largest = max(abs(row.error) for row in found)
    print(f"{len(found)} rows; off by {largest:.2%} at most, {ALLOWED:.0%} allowed; {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
