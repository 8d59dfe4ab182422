"""Execute the notebooks of docs: `python -m tests.notebooks` (`make docs`) compares the outputs, `--write` keeps them.

It needs the environment of `make docs`, with traincope, nbclient and a kernel.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs").rglob("*.ipynb"))


def executed(path: Path) -> nbformat.NotebookNode:
    """A copy with the outputs of an execution in the notebook's folder. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}, record_timing=False
    ).execute()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[object]:
    return [cell.get("outputs", []) for cell in notebook.cells]


def main(*, write: bool) -> int:
    changed = []
    for path in NOTEBOOKS:
        new = executed(path)
        if write:
            nbformat.write(new, path)
        else:
            kept = outputs(nbformat.read(path, as_version=4))
            differing = [pair for pair in zip(outputs(new), kept, strict=True) if pair[0] != pair[1]]
            changed += [path.name] if differing else []
            for now, before in differing:
                print(f"{path.name}: an output is {now}\nand was {before}")
        print(f"{path.name}: {len(new.cells)} cells executed")
    if changed:
        print(f"other outputs than the committed ones: {', '.join(changed)}; run `make notebooks`")
    return int(bool(changed) or not NOTEBOOKS)


if __name__ == "__main__":
    sys.exit(main(write="--write" in sys.argv[1:]))
