"""What is written down of an exception that ends a run: never its message, which may hold data."""

import os
from types import TracebackType

OWN_FILES = os.path.dirname(__file__)


def place_of(traceback: TracebackType | None) -> str:
    """File and line where it was raised, our own hooks around torch's calls aside; no source, no locals."""
    place = ""
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if os.path.dirname(path) != OWN_FILES:
            place = f"{os.path.basename(path)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
