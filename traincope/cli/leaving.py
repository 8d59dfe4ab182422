"""How a worker ends: without running destructors.

gloo's threads may still hold work when the interpreter tears down, and abort it at random
(`terminate called without an active exception`) after a training that went well.
"""

import os
import sys
import textwrap
import traceback
from types import TracebackType
from typing import NoReturn

import torch.distributed as dist


def leave(code: int) -> NoReturn:
    """End a worker whose peers end too."""
    if dist.is_initialized():
        dist.destroy_process_group()
    leave_at_once(code)


def leave_at_once(code: int) -> NoReturn:
    """End a worker that failed: its peers may hang in the process group, and so would its destruction."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_on_error() -> None:
    """From now on an exception that nobody catches is printed and ends the process with code 1."""
    sys.excepthook = _print_and_leave


def _print_and_leave(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Writes past `sys.stderr`: a process group calls this hook with another, whose text it shows when we return.

    As torch does it, each line tells its rank; all are one write, for ranks often fail together.
    """
    lines = "".join(traceback.format_exception(kind, error, where))
    print(textwrap.indent(lines, f"[rank{os.environ.get('RANK', '?')}]: "), end="", file=sys.__stderr__, flush=True)
    leave_at_once(1)
