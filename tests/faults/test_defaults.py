"""torch's defaults are the training's to choose: nothing of ours is made by them."""

from pathlib import Path

import torch

import traincope
from tests.faults.victims import Victims
from traincope.store import read_run


def record(out: str, device: str) -> None:
    torch.set_default_device(device)
    with traincope.run(out) as run:
        run.step()
        run.log(loss=torch.ones((), device="cpu"))


def test_a_default_device_that_holds_no_data_takes_no_probe_away(victims: Victims, tmp_path: Path) -> None:
    probes = {}
    for device in ("cpu", "meta"):
        assert victims.train(record, tmp_path / device, device).code == 0
        probes[device] = read_run(tmp_path / device).ranks[0].info.probes
    assert probes["meta"] == probes["cpu"]
    assert probes["meta"]["collectives"] == "on"
