"""A server that forks a process per request: `python -m tests.faults.victims.server`.

A request is a line of JSON, `{"module", "function", "arguments", "directory"}`. The answers are the child's process id
and, once it has ended, its wait status. The child leaves through the end of this module, so that the interpreter's own
shutdown is part of the test.
"""

import gc
import importlib
import json
import os
import signal
import warnings
from pathlib import Path


def main() -> None:
    """Serve until there are no more requests; or, in a child, run one request."""
    # Imported once for all children. A spawned grandchild imports this file too, and needs none of it.
    import pytest  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed.device_mesh
    import torch.distributed.pipelining

    import traincope  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    say("ready")
    while line := os.read(0, 1 << 20).decode():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            # A shell's background process ignores SIGINT, and its default action is part of the test.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            answer(request)
            return
        say(child)
        say(os.waitpid(child, 0)[1])


def say(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def answer(request: dict[str, object]) -> None:
    """Call the function. Its result is in `result.json` unless the process ended before."""
    directory = Path(str(request["directory"]))
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        os.dup2(os.open(directory / name, flags | os.O_CREAT), number)
    os.chdir(directory)
    warnings.simplefilter("error")
    function = getattr(importlib.import_module(str(request["module"])), str(request["function"]))
    result = function(*request["arguments"])  # type: ignore[misc]
    (directory / "result.json").write_text(json.dumps(result))
    if request["briefly"]:
        os._exit(0)


if __name__ == "__main__":
    main()
