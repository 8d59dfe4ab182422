"""One rank of the trainings of `traincope doctor --gpu`, which torchrun starts.

python -m traincope.cli.launch.gpu_proof_rank FOLDER SECONDS
"""

import signal
import sys
from pathlib import Path

from traincope.cli.launch.worker_exit import end_with_starter, exit_now, exit_on_error, exit_worker
from traincope.cli.screen import make_safe
from traincope.doctor.gpu_proof.launching import leaving_reason
from traincope.doctor.gpu_proof.training import train
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.errors import TrainingError


def main(folder: Path, seconds: float) -> None:
    """Join the process group, train, and end the process."""
    exit_on_error()
    make_safe()
    end_with_starter(signal.SIGKILL)
    environment = WorkerEnvironment.read()
    try:
        with leaving_reason(folder, rank=environment.rank):
            train(folder, device=join(environment), seconds=seconds)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        exit_now(error.exit_code)
    exit_worker(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
