"""A notebook in a real kernel: `notebook.py FOLDER KIND`. The kernel inherits the environment of this process.

KIND: `alone` (trains in a cell), `failing` (a cell fails between two others), `forked` (the kernel starts the ranks).
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
CELLS = {
    "alone": ("training.train(FOLDER, in_group=False)",),
    "failing": ("{}['a typing error']", "training.train(FOLDER, in_group=False)"),
    "forked": ("model = training.model_of()", "training.main(FOLDER, 'prepared')"),
}


def main(folder: str, kind: str) -> None:
    first = f"import sys; sys.path.append({str(HERE)!r}); import training; FOLDER = {folder!r}"
    cells = [nbformat.v4.new_code_cell(source) for source in (first, *CELLS[kind])]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=600, kernel_name="python3", allow_errors=kind == "failing").execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
