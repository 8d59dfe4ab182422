"""End of a worker: without destructors, and with the process that started it.

gloo's threads may still hold work when the interpreter shuts down. They then abort at random
(`terminate called without an active exception`) after a successful training.
"""

import os
import signal
import sys
import textwrap
import traceback
from types import TracebackType
from typing import NoReturn

import torch.distributed as dist

from traincope.cli.launch.parent_death import end_with_parent
from traincope.cli.screen import print_past_redirection
from traincope.engine.launch import PARENT_VARIABLE


def end_with_starter(number: signal.Signals) -> None:
    """Let the kernel send this signal to this process when the one that started it ends, also by SIGKILL.

    The variable names that process. It is removed, because it would be wrong in children.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    end_with_parent(number, parent=None if parent is None else int(parent))


def exit_worker(code: int) -> NoReturn:
    """End a worker after success, when its peers end too."""
    if dist.is_initialized():
        dist.destroy_process_group()
    exit_now(code)


def exit_now(code: int) -> NoReturn:
    """End a failed worker. Its peers may hang in the process group, and destroying the group would hang too."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_on_error() -> None:
    """From now on, print an uncaught exception and end the process with code 1."""
    sys.excepthook = _print_and_exit


def _print_and_exit(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Write to the real standard error, past `sys.stderr`.

    A process group calls this hook with a replaced `sys.stderr` and shows its text only after the hook returns. As in
    torch, each line names its rank. All lines are one write because ranks often fail together.
    """
    lines = "".join(traceback.format_exception(kind, error, where))
    print_past_redirection(textwrap.indent(lines, f"[rank{os.environ.get('RANK', '?')}]: "))
    exit_now(1)
