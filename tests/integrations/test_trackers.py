"""MFU and its like in the training's own tracker, read back with the tracker's own reader."""

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.integrations.environments import python_of
from tests.integrations.test_hugging_face import ATTENTION, TOKENS, WEIGHTS
from tests.integrations.training import JOINED, PLAIN, Training, train

pytestmark = pytest.mark.integrations

PEAK, RANKS = 1e9, 2
AGENT = {"TRAINCOPE_AGENT": "on", "TRAINCOPE_AGENT_INTERVAL": "0.2", "TRAINCOPE_AGENT_SHARE": "1"}
FLOPS = {
    "hugging_face": 6 * WEIGHTS * TOKENS + ATTENTION,
    "lightning": 6 * (16 * 32) * (2 * 2 * 4 * 8),
}
PROGRAMS = {"hugging_face": "hugging_face", "lightning": "lightning_fit"}
STEPS = {"hugging_face": range(2, 7), "lightning": range(1, 6)}
"""Steps without the warm-up step, as the trainers count them for their own values."""

READ_WANDB = """
import glob, json, struct, sys
from wandb.proto import wandb_internal_pb2
(path,) = glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")
content, at, message, points = open(path, "rb").read(), 7, b"", []
while at + 7 <= len(content):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
    _, size, kind = struct.unpack_from("<IHB", content, at)
    message += content[at + 7 : at + 7 + size]
    at += 7 + size
    if kind not in (1, 4):
        continue
    record, message = wandb_internal_pb2.Record.FromString(message), b""
    row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
    if "traincope/mfu" in row:
        step = row.get("traincope/step", row.get("trainer/global_step"))
        points.append([step, {name: value for name, value in row.items() if name.startswith("traincope/")}])
print(json.dumps(points))
"""
"""wandb has no reader of its files in Python: a log of LevelDB's format with wandb's own messages."""
READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient()
(run,) = [run for each in client.search_experiments() for run in client.search_runs(each.experiment_id)]
points = {}
for name in run.data.metrics:
    for metric in client.get_metric_history(run.info.run_id, name):
        if name.startswith("traincope/"):
            points.setdefault(metric.step, {})[name] = metric.value
print(json.dumps(sorted(points.items())))
"""
READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1] + "/tensorboard")
events.Reload()
points = {}
for name in events.Tags()["scalars"]:
    for event in events.Scalars(name):
        if name.startswith("traincope/"):
            points.setdefault(event.step, {})[name] = event.value
print(json.dumps(sorted(points.items())))
"""
READERS = {"wandb": READ_WANDB, "mlflow": READ_MLFLOW, "tensorboard": READ_TENSORBOARD}


def read(environment: str, tracker: str, folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Points of the tracker: (step, values)."""
    printed = subprocess.run(
        [str(python_of(environment)), "-c", READERS[tracker], str(folder)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"},
    )
    return [(step, values) for step, values in json.loads(printed.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Training]:
    """The training without a callback in an environment."""
    return cache(lambda name: train(tmp_path_factory.mktemp(name), name, PROGRAMS[name], PLAIN))


@pytest.mark.parametrize(
    ("environment", "tracker"),
    [
        ("hugging_face", "wandb"),
        ("hugging_face", "mlflow"),
        ("lightning", "wandb"),
        ("lightning", "mlflow"),
        ("lightning", "tensorboard"),
    ],
)
def test_the_tracker_has_the_numbers_of_the_agent_at_the_trainers_steps(
    tmp_path: Path, environment: str, tracker: str, plain_training: Callable[[str], Training]
) -> None:
    """MFU is FLOPs, counted by hand, over peak, ranks and step time: the product gives the FLOPs back."""
    program = PROGRAMS[environment]
    plain = plain_training(environment)
    training = train(tmp_path / JOINED, environment, program, JOINED, tracker=tracker, **AGENT)
    assert training.results == plain.results
    points = read(environment, tracker, training.folder)
    assert points
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    for step, values in points:
        assert step in STEPS[environment]
        flops = values["traincope/mfu"] * PEAK * RANKS * values["traincope/step_seconds"]
        assert flops == pytest.approx(FLOPS[environment], rel=1e-4)
        assert 0 < values["traincope/exposed_communication"] < 1
        assert 0 < values["traincope/overhead"] < 1
        assert "traincope/bubble" not in values, "there is no pipeline"
