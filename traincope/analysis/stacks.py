"""Where a thread stood when a signal came, from the text that `faulthandler` left."""

import re
from pathlib import PurePath

FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
THREAD = re.compile(r"^(?:Current thread|Thread) 0x\w+.*\(most recent call first\):$", re.MULTILINE)
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def place(stacks: str) -> str | None:
    """The innermost frame, e.g. "all_reduce (distributed_c10d.py:3112)"; None where there is none.

    Of the thread that the signal interrupted where that is told, else of the oldest, which is the
    main thread: threads are listed newest first.
    """
    heads = list(THREAD.finditer(stacks))
    if not heads:
        return None
    chosen = next((head for head in heads if head.group().startswith("Current")), heads[-1])
    frame = FRAME.search(stacks, chosen.end())
    beyond = next((head.start() for head in heads if head.start() > chosen.start()), len(stacks))
    if frame is None or frame.start() > beyond:
        return None
    path, line, function = frame.groups()
    return f"{function} ({PurePath(path).name}:{line})"


def fatal_error(stacks: str) -> str | None:
    """What a fatal signal is called in its first line, e.g. "Segmentation fault"."""
    found = FATAL.search(stacks)
    return found.group(1).strip() if found else None
