"""TensorBoard's event files that the agent writes without any code, read back with TensorBoard's reader."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.integrations.environments import python_of
from tests.integrations.test_trackers import AGENT, FLOPS, PEAK, RANKS
from tests.integrations.training import JOINED, train
from traincope.store.layout import AGENT_LOG

pytestmark = pytest.mark.integrations

READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
events = EventAccumulator(sys.argv[1])
events.Reload()
points = {}
for name in events.Tags()["tensors"]:
    for event in events.Tensors(name):
        points.setdefault(event.step, {})[name] = float(make_ndarray(event.tensor_proto))
print(json.dumps(sorted(points.items())))
"""
TIMEOUT_SECONDS = 120


def test_the_agent_writes_the_scalars(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    training = train(tmp_path, "hugging_face", "hugging_face", JOINED, TRAINCOPE_TENSORBOARD=str(directory), **AGENT)
    until = time.monotonic() + TIMEOUT_SECONDS
    while "ledger rows written" not in "".join(path.read_text() for path in training.run.rglob(AGENT_LOG)):
        assert time.monotonic() < until, "the agent does not end"
        time.sleep(0.2)
    command = [str(python_of("hugging_face")), "-c", READ, str(directory)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    points = json.loads(printed.stdout.splitlines()[-1])
    assert points[-1][0] == 6
    for _, values in points:
        flops = values["traincope/mfu"] * PEAK * RANKS * values["traincope/step_seconds"]
        assert flops == pytest.approx(FLOPS["hugging_face"], rel=1e-4)
