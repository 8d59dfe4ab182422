"""What is written down of an exception that ends a run: never its message, which may hold data."""

import os
from types import TracebackType


def place_of(traceback: TracebackType | None) -> str:
    """File and line where it was raised; no source, no locals."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
