"""One rank that measures a preflight for each line on its standard input: JSON of a trial.

Rank 0 answers each with one line, the names of the judgement. A slow rank takes a multiple of the time of each matrix
product. Every stage sleeps in each forward, because there are more ranks than cores; a long one sleeps longer.
Collectives are left out: nothing is named by them.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from traincope.engine.config import Config
from traincope.engine.config.load import load_config
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.engine.trainer import Trainer
from traincope.preflight.configuration import configured
from traincope.preflight.judging.judgement import judge
from traincope.preflight.measurements import Settings
from traincope.preflight.measuring import measure as measuring
from traincope.preflight.measuring.messages import BYTES_ON_CPU

STAGE_SECONDS = 0.06


def main(config: Config) -> None:
    environment = WorkerEnvironment.read()
    device = join(environment)
    print("ready", flush=True)
    for line in sys.stdin:
        trial = json.loads(line)
        settings = Settings(steps=trial["steps"], alarm_ratio=1.0, repeats=3)
        started = time.monotonic()
        with ExitStack() as faults:
            faults.enter_context(patch.object(Trainer, "__init__", sleeping(trial["stages"])))
            if environment.rank in trial["slow_ranks"]:
                faults.enter_context(patch.object(torch, "mm", slowed(torch.mm, trial["factor"])))
            faults.enter_context(patch.object(measuring, "measure_collectives", lambda *_, **__: ()))
            measured = measuring.measure(config, settings, local_rank=0, device=device, report=lambda _: None)
        if environment.rank == 0:
            judgement = judge(measured, configured(config), settings)
            names = [[each.kind, list(each.ranks), each.factor] for each in judgement.findings]
            large = [each for each in measured.pairs if each.num_bytes == max(BYTES_ON_CPU)]
            pairs = {
                f"{each.round} {each.ranks}": [round(1e3 * seconds, 2) for seconds in each.seconds] for each in large
            }
            trained = measured.training.stages if measured.training is not None else ()
            stages = {each.stage: [sum(kinds.values()) for kinds in each.seconds.values()] for each in trained}
            answer = {"names": names, "seconds": time.monotonic() - started, "milliseconds": pairs, "stages": stages}
            print(json.dumps(answer), flush=True)


def slowed(product: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """A product that takes `factor` times as long."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = product(*args, **kwargs)
        end = started + factor * (time.perf_counter() - started)
        while time.perf_counter() < end:
            pass
        return result

    return slow


def sleeping(factors: dict[str, float]) -> Callable[..., None]:
    """`Trainer.__init__` whose stages sleep, those in `factors` that many times as long."""
    original = Trainer.__init__

    def init(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        original(trainer, *args, **kwargs)
        for stage, module in trainer.modules.items():
            seconds = STAGE_SECONDS * factors.get(str(stage), 1.0)

            def sleep(_module: nn.Module, _inputs: object, seconds: float = seconds) -> None:
                time.sleep(seconds)

            module.register_forward_pre_hook(sleep)

    return init


if __name__ == "__main__":
    main(load_config(sys.argv[1]))
