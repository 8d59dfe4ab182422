"""Files of the training's own code, by their paths in stacks and tracebacks."""

import re

LIBRARY = re.compile(r"/(?:lib/)?python3(?:\.\d+)?/(?!site-packages|dist-packages)|^<frozen ")
"""Path of Python's own modules."""
PACKAGES = (
    "/torch/",
    "/traincope/record/",
    "/traincope/startup/",
    "/traincope/inject/moments.py",
    "/traincope/inject/calls.py",
    "/typing_extensions.py",
)
"""Parts of paths; `typing_extensions` wraps functions of torch."""


def is_training(path: str) -> bool:
    """True for code that belongs to neither Python, torch nor the recorder. An injected fault belongs to the training,
    and what calls it does not.
    """
    return LIBRARY.search(path) is None and not any(part in path for part in PACKAGES)
