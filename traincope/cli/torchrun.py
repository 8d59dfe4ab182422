"""torchrun, told to leave a note about who failed: `python -m traincope.cli.torchrun NOTE ARGUMENTS`.

torchrun prints failures for people; the launcher needs rank and exit code.
"""

import json
import signal
import sys
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


def main(note: Path, arguments: list[str]) -> int:
    try:
        torchrun.run(torchrun.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda item: _suspicion(item[1]))
        note.write_text(json.dumps({"rank": rank, "exit_code": failure.exitcode}))
        return 1
    return 0


def _suspicion(failure: ProcessFailure) -> tuple[bool, int]:
    """Sorts the culprit first: who was killed, else who failed first.

    When a rank is killed its peers fail on the lost connection, and may be noticed before it.
    SIGTERM is the agent's own, and an abort is what a peer's lost connection can end in.
    """
    killed = failure.exitcode < 0 and -failure.exitcode not in (signal.SIGTERM, signal.SIGABRT)
    return not killed, failure.timestamp


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
