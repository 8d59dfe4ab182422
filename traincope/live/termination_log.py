"""Termination message of a Kubernetes container: `kubectl describe pod` shows what a container wrote there.

Kubernetes creates the file. A manifest may name another one (`terminationMessagePath`), which the container cannot see,
so `TRAINCOPE_TERMINATION_LOG` repeats it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULT_PATH = "/dev/termination-log"
PATH_VARIABLE = "TRAINCOPE_TERMINATION_LOG"
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
MAX_BYTES = 2048
"""Kubernetes keeps the last 4,096 bytes of the file. The training may write there too."""


def write_termination_message(sentence: str, environment: Mapping[str, str]) -> bool:
    """Append the sentence. Returns False outside of Kubernetes and without the file. Raises OSError."""
    path = Path(environment.get(PATH_VARIABLE) or DEFAULT_PATH)
    if IN_KUBERNETES not in environment or not os.access(path, os.W_OK):
        return False
    cut = f"traincope: {sentence}".encode()[:MAX_BYTES].decode(errors="ignore")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{cut}\n")
    return True
