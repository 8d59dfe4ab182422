"""`make test-gpus`: trainings on two or more GPUs with NCCL's plugin, checked against what one GPU did in them.

It takes a few minutes, and writes a file without names of hosts, users or paths, to attach to an issue.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.gpus.judging import Check, judged
from traincope.native.cached import BUILD
from traincope.native.nccl import VARIABLE, find_plugin
from traincope.timeline import open_run

CASES = ("DDP", "FSDP")
LIMIT_SECONDS = 150
NEEDED_GPUS = 2
NOTHING = "NOTHING BETWEEN GPUS WAS VERIFIED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("traincope-gpus.json"))
    out = parser.parse_args().out
    if torch.cuda.device_count() < NEEDED_GPUS:
        print(f"{NOTHING}: torch sees {torch.cuda.device_count()} GPUs, {NEEDED_GPUS} are needed")
        return 1
    if find_plugin().path is None:
        print(f"{NOTHING}: build the plugin first, by `{BUILD}`")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        results = {case: _case(case, Path(folder)) for case in CASES}
    out.write_text(json.dumps(_document(results), indent=1))
    for case, result in results.items():
        for check in result if isinstance(result, tuple) else ():
            verdict = "passed" if check.passed else "FAILED"
            print(f"{verdict}  {case}: {check.name}: {check.measured} {check.unit}, expected {check.expected}")
        if isinstance(result, str):
            print(f"FAILED  {case}: {result}")
    print(f"{out} has no names of hosts, users or paths: attach it to an issue")
    return 0 if all(isinstance(each, tuple) and all(check.passed for check in each) for each in results.values()) else 1


def _case(case: str, folder: Path) -> tuple[Check, ...] | str:
    """Train, and judge the run. Returns a sentence if the training fails."""
    run, training = folder / case, Path(__file__).with_name("training.py")
    gpus = f"--nproc-per-node={torch.cuda.device_count()}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", gpus, str(training), case, str(run)]
    environment = os.environ | {VARIABLE: "on", "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the training did not end within {LIMIT_SECONDS} s"
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return f"the training ended with code {done.returncode}; its errors are above, and not in the file"
    spins_ns = [round(ms * 1e6) for ms in json.loads(run.with_suffix(".spins.json").read_text())]
    return judged(open_run(run), spins_ns)


def _document(results: dict[str, tuple[Check, ...] | str]) -> dict[str, Any]:
    count = torch.cuda.device_count()
    return {
        "schema_version": 1,
        "gpus": [torch.cuda.get_device_name(number) for number in range(count)],
        "peer_access": [
            [one == other or torch.cuda.can_device_access_peer(one, other) for other in range(count)]
            for one in range(count)
        ],
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        },
        "cases": {
            case: [asdict(check) for check in result] if isinstance(result, tuple) else result
            for case, result in results.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
