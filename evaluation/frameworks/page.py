"""docs/develop/frameworks.md: one row per program. A run of some programs replaces only their rows."""

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from evaluation.truth.rows import Row

COLUMNS = (
    "ranks",
    "steps",
    "optimizer steps",
    "mesh",
    "collectives",
    "FLOPs",
    "evaluations",
    "checkpoints",
    "ledger",
    "losses",
)
"""Quantities with a column. The others appear only where they do not hold."""

HEAD = """# Real packages, really trained

`make test-frameworks` trains each program below twice on gloo CPU ranks: bare, and as `traincope run -- COMMAND`,
without a change to its code. It compares the recording with the truth about the program, which is counted by hand in
`evaluation/frameworks`, and writes this page. `make test-frameworks ONLY=lightning` runs some.

All models are tiny. The recorder ran without a budget, so every step has its detail, and without its agent.

- A cell has the measured value. Where the truth is another one, the last column has both.
- `collectives`: of every axis and operation, number and bytes after step 0. What an evaluation sends before its first
  or after its last forward counts in a step.
- `FLOPs`: of one step, forward and backward, within 1 % of the formula.
- `evaluations`, `checkpoints`: the numbers of optimizer steps after which the report has them.
- `losses`: bit by bit those of the bare program. In every row without a remark, exit code and output are the bare
  program's too, no probe failed, and the report names no fault.

- torchtitan 0.2.2 is the last version that fits this torch. On two ranks all of its meshes share the group of all
  ranks, so the loss has the axis of the weights.
- Megatron-Core's schedules allocate on a GPU, so its program has a loop of its own. ZeRO-3 gathers weights each time:
  by default it would keep weights as small as these.

Not in the table: MosaicML Composer, whose newest version, 0.32.1, needs a torch older than 2.7.1 (26 November 2026).

"""
HEADER = ("program", "versions and date", *COLUMNS, "what does not hold")


def write(page: Path, name: str, rows: Sequence[Row], *, failure: str, versions: str) -> None:
    """Write the line of one program; those of other programs stay.

    `failure`: the reason why there are no rows.
    """
    lines = _lines(page)
    cells = [name, f"{versions}; {date.today():%d %B %Y}".replace("; 0", "; ")]
    judged = {row.quantity: row for row in rows}
    cells += [_cell(judged.get(column)) for column in COLUMNS]
    wrong = [f"{row.quantity}: {row.measured}, true: {row.truth}" for row in rows if not row.holds]
    cells.append(re.sub(r"\S+\.py\S*", "FILE", failure or ". ".join(wrong)))  # pages name no files of others
    lines[name] = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    table = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER), *lines.values()]
    page.write_text(HEAD + "\n".join(table) + "\n")


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if not row.holds:
        return "no"
    return "exact" if row.quantity == "collectives" else row.measured


def _lines(page: Path) -> dict[str, str]:
    """Program -> its row on the page."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")] if page.exists() else []
    return {line[2:].partition(" | ")[0]: line for line in lines[1:]}
