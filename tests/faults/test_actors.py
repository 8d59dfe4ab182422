"""Other threads of the training that multiply during a count: a race in torch's dispatcher."""

import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

import traincope
from tests.faults.victims.victims import Victims
from traincope.record.compute import flops
from traincope.store import read_run

STEPS = 400


def learn_beside_actors(out: str, late: bool) -> dict[str, Any]:
    """Run a learner and two actors, as in IMPALA, with every second step due to be counted. Returns the actors' errors.

    `late`: they begin in such a step.
    """
    flops.is_due = lambda step: step % 2 == 1
    sys.setswitchinterval(1e-5)
    model, batch, errors, over = nn.Linear(8, 8), torch.randn(4, 8), list[str](), threading.Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def act() -> None:
        try:
            while not over.is_set():
                with torch.no_grad():
                    model(batch)
        except Exception as error:  # noqa: BLE001 - any exception here is what this test looks for
            errors.append(repr(error))

    actors = [threading.Thread(target=act) for _ in range(2)]
    with traincope.run(out, budget=None) as run:
        for step in range(STEPS):
            if step == (31 if late else 0):
                for actor in actors:
                    actor.start()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()
    over.set()
    for actor in actors:
        actor.join()
    return {"errors": errors}


def test_counting_flops_does_not_break_actor_threads(victims: Victims, tmp_path: Path) -> None:
    for late in (False, True):
        ended = victims.train(learn_beside_actors, tmp_path / f"late-{late}", late)
        assert (ended.code, ended.err, ended.result) == (0, "", {"errors": []})
        (rank,) = read_run(tmp_path / f"late-{late}").ranks
        assert rank.info.probes["flops"].startswith("off: another thread of the training also multiplies")
