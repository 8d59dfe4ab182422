"""torch's defaults belong to the training: the recorder creates nothing with them."""

from pathlib import Path

import torch

import traincope
from tests.faults.victims.victims import Victims
from traincope.store import read_run


def record(out: str, device: str) -> None:
    torch.set_default_device(device)
    with traincope.run(out) as run:
        run.step()
        run.log(loss=torch.ones((), device="cpu"))


def test_all_probes_work_with_meta_as_the_default_device(victims: Victims, tmp_path: Path) -> None:
    probes = {}
    for device in ("cpu", "meta"):
        assert victims.train(record, tmp_path / device, device).code == 0
        probes[device] = read_run(tmp_path / device).ranks[0].info.probes
    assert probes["meta"] == probes["cpu"]
    assert probes["meta"]["collectives"] == "on"
