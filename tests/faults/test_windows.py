"""Windows that begin and end next to threads that issue collectives: no error, flat memory."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import traincope
from tests.faults.victims import victims as victims_module
from tests.faults.victims.trainings import join_a_group
from tests.faults.victims.victims import Victims
from traincope.events import BLOCK_STEPS
from traincope.record.compute.memory.totals import process_memory
from traincope.record.session import sampling
from traincope.store import read_run


def alternate(out: str, num_windows: int) -> dict[str, Any]:
    """Train in windows and light steps by turns, one of two blocks each, next to two threads with a group each.

    Returns the threads' errors, their collectives, and the growth of resident memory in the second half, bytes.
    """
    sampling.MAX_HALVINGS = 1
    join_a_group()
    errors, num_issued, over = list[str](), [0, 0], threading.Event()

    def reduce(thread: int, group: dist.ProcessGroup) -> None:
        tensor = torch.ones(2)
        try:
            while not over.is_set():
                dist.all_reduce(tensor, group=group, async_op=True).wait()
                num_issued[thread] += 1
        except Exception as error:  # noqa: BLE001 - any exception here is what this test looks for
            errors.append(repr(error))

    threads = [threading.Thread(target=reduce, args=(number, dist.new_group([0]))) for number in range(2)]
    sizes = []
    with traincope.run(out, budget=1e-9, disk_budget=4 << 20) as run:
        for thread in threads:
            thread.start()
        for _ in range(2):
            for _ in range(num_windows * BLOCK_STEPS):  # half of the run: two blocks hold one window
                run.step()
                dist.all_reduce(torch.ones(2))
            sizes.append(process_memory()[0])
        over.set()
        for thread in threads:
            thread.join()
    return {"errors": errors, "issued": num_issued, "growth": sizes[1] - sizes[0]}


@pytest.mark.parametrize("num_windows", [100, pytest.param(10_000, marks=pytest.mark.sweep)])
def test_windows_next_to_threads_that_issue_collectives(
    victims: Victims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_windows: int
) -> None:
    monkeypatch.setattr(victims_module, "TIMEOUT_SECONDS", 1_800.0)
    ended = victims.train(alternate, tmp_path / "run", num_windows)
    assert (ended.code, ended.err, ended.result["errors"]) == (0, "", [])
    assert min(ended.result["issued"]) > num_windows
    assert ended.result["growth"] < 16 << 20  # 12 KiB per window would be 59 MiB in the second half of 10,000
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["collectives"] == "on"
    assert not any("failed" in state for state in rank.info.probes.values())
