"""Redacted runs keep all numbers and no names."""

import gc
import json
import shutil
from pathlib import Path

import pytest
import torch

import traincope
from traincope.cli.launch.worker import settings
from traincope.engine.config import Config
from traincope.errors import UnreadableError, UsageError
from traincope.report.document.document import to_document
from traincope.store import Look, read_run
from traincope.store.job.looks import append_look, read_looks
from traincope.store.layout import STACKS_FILE
from traincope.store.redaction import redact

SAMPLES = sorted(path.parent for path in (Path(__file__).parents[2] / "sample_runs").glob("*/attempt-000"))


PLANTS = (
    "plant-setting-value",
    "plant-setting-key",
    "plant-nested-key",
    "plant-nested-value",
    "plant-peak-key",
    "plant-peak-source",
    "plant-span",
    "plant_schedule",
    "plant-event",
    "plant-detail-key",
    "plant-detail-value",
    "plant-under-our-name",
    "plant-logged",
    "plant-failing-value",
    "plant-axis",
    "plant-stray",
    "plant-level",
    "plant-error",
)
"""Texts at every place where a training or a user can put one."""


def record(path: Path) -> None:
    with traincope.run(path) as run:
        run.describe(project=PLANTS[0], tokens_per_step=64, **{PLANTS[1]: {PLANTS[2]: [PLANTS[3]]}})
        run.describe(peak_flops={PLANTS[4]: 1e12}, peak_source=PLANTS[5], why=PLANTS[3])
        for _ in range(3):
            run.step()
            for span in (PLANTS[6], PLANTS[7]):
                with traincope.span(span):
                    traincope.event(PLANTS[8], why=PLANTS[10], **{PLANTS[9]: 1})
            traincope.event("gpu memory", why=PLANTS[11])
            traincope.event("gpu xid", meaning=PLANTS[11], reasons=[PLANTS[11]], xid=79)
            traincope.event("exception", type=PLANTS[11], at=PLANTS[11])
            run.log(**{PLANTS[12]: 1.0}, loss=PLANTS[13])
        assert run._recorder is not None
        run._recorder.mesh, run._recorder.coords = {PLANTS[14]: 1, "dp": 1}, {PLANTS[14]: 0, "dp": 0}
        run._recorder.add_group(key=PLANTS[14], axis=PLANTS[14], rule="mesh", ranks=(0,))
        run._recorder.add_group(key="1", axis="dp_shard_cp", rule="mesh", ranks=(0,))
        run._recorder.probes["waits"] = f"absent: OSError: [Errno 30] Read-only file system: '/{PLANTS[17]}'"
    (rank,) = path.glob("attempt-*/rank-*")
    for stray in (rank / "notes.seg", rank / f"{PLANTS[15]}-00000.seg", rank / "signal-notes.txt", path / "notes"):
        stray.write_text(PLANTS[15])
    (path / "level").write_text(PLANTS[16])
    asked = {"attempt": 0, "first_step": 7, "num_steps": 6, "cause": "spike", "at_step": 3, "at_wall_ns": 1}
    (path / "requests.jsonl").write_text(
        f"{json.dumps(asked | {PLANTS[15]: PLANTS[15]})}\n{json.dumps(asked | {'cause': PLANTS[15]})}\n"
    )
    append_look(rank, Look(at_ns=5, state="S", wait_channel="do_wait", stack=PLANTS[15]))
    append_look(rank, Look(at_ns=6, state=PLANTS[15], wait_channel=PLANTS[16]))
    (rank / STACKS_FILE).write_text(PLANTS[15])
    with (path / "launcher.jsonl").open("a") as notes:
        notes.write(f'{{"attempt": 0, "rank": 0, "exit_code": 1, "at_wall_ns": 1, "{PLANTS[15]}": "{PLANTS[15]}"}}\n')


def plants_in(path: Path) -> set[str]:
    files = [file for file in path.rglob("*") if file.is_file()]
    texts = [file.read_bytes() + str(file.relative_to(path)).encode() for file in files]
    return {plant for plant in PLANTS if any(plant.encode() in text for text in texts)}


def test_no_name_remains(tmp_path: Path) -> None:
    record(tmp_path / "run")
    redact(tmp_path / "run", tmp_path / "shown")
    assert plants_in(tmp_path / "run") == {*PLANTS} - {"plant-failing-value"}  # which the original lacks too
    assert plants_in(tmp_path / "shown") == set()
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    cards = [path.read_bytes() for path in (tmp_path / "shown").rglob("*") if path.is_file()]
    assert not any(f'"{host}"'.encode() in content for content in cards)


def test_numbers_types_and_standard_axes_stay(tmp_path: Path) -> None:
    record(tmp_path / "run")
    redact(tmp_path / "run", tmp_path / "shown")
    before, after = read_run(tmp_path / "run"), read_run(tmp_path / "shown")
    assert (after.info.mesh["dp"], len(after.info.mesh)) == (1, 2)
    assert [group.axis for group in after.ranks[0].groups][1] == "dp_shard_cp"
    assert after.ranks[0].info.probes["waits"] == "absent: OSError"
    assert after.ranks[0].info.probes["run._log"] == "failed 3 times: ValueError"
    assert (after.info.settings["tokens_per_step"], list(after.info.settings["peak_flops"].values())) == (64, [1e12])
    assert after.launcher == before.launcher
    assert [request.reason for request in after.requests] == ["a spike in a logged value (step 3)"]
    assert after.requests == before.requests
    details = [values for values in after.ranks[0].details.values() if 79 in values.values()]
    assert len(details) == 3


def test_of_an_exception_only_the_type_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="plant"), traincope.run(tmp_path / "run"):
        raise ValueError("plant-message")
    redact(tmp_path / "run", tmp_path / "shown")
    (details,) = read_run(tmp_path / "shown").ranks[0].details.values()
    assert (details["type"], details.keys()) == ("ValueError", {"type", "at"})


def test_inputs_of_utilization_stay(tmp_path: Path) -> None:
    values = {name: 7 for name, value in settings(Config()).items() if not isinstance(value, dict)}
    del values["experts"], values["checkpoint"]
    with traincope.run(tmp_path / "run") as run:
        run.describe(**values, peak_flops=7, model_flops_per_step=7)
        run.log(step_tokens=1.0, step_squared_lengths=1.0)
    redact(tmp_path / "run", tmp_path / "shown")
    before, after = read_run(tmp_path / "run"), read_run(tmp_path / "shown")
    assert after.info.settings == before.info.settings
    assert {"step_tokens", "step_squared_lengths"} <= set(after.ranks[0].names)


@pytest.mark.slow
def test_names_of_traincope_stay(tmp_path: Path) -> None:
    """A training without its own names: every name except those of classes."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with traincope.run(tmp_path / "run") as run:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            torch.save({}, tmp_path / "saved")
            torch.load(tmp_path / "saved")
            gc.collect()
            run.log(loss=1.0, grad_norm=1.0)
            run.step()
    redact(tmp_path / "run", tmp_path / "shown")
    (before,), (after,) = read_run(tmp_path / "run").ranks, read_run(tmp_path / "shown").ranks
    used = {int(number) for thread in before.threads for number in before.thread(thread)["name"]}
    changed = {before.name(number) for number in used if before.name(number) != after.name(number)}
    assert changed == {"Linear", "SGD"}
    assert len(used) > 10


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_number_stays(tmp_path: Path, sample: Path) -> None:
    redact(sample, tmp_path / "shown")
    before = to_document(traincope.analyze(traincope.open_run(sample)))
    after = to_document(traincope.analyze(traincope.open_run(tmp_path / "shown")))
    for key in ("ledger", "comm", "bubble", "stragglers", "utilization", "faults", "memory", "goodput", "reliability"):
        assert after[key] == before[key], key  # type: ignore[literal-required]
    assert [finding["kind"] for finding in after["verdict"]] == [finding["kind"] for finding in before["verdict"]]


def test_expert_loads_stay(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        run.log(**{"expert_tokens[2.1]": 30, "expert_tokens[2.0]": 10, "expert_padding": 8, "expert_dropped": 4})
        run.step()
    redact(tmp_path / "run", tmp_path / "shown")
    loads = traincope.analyze(traincope.open_run(tmp_path / "shown")).experts
    assert loads is not None
    assert (loads.layers[0].tokens, loads.padding, loads.dropped) == ((10, 30), 8, 4)


def test_the_recorded_ending_stays(tmp_path: Path) -> None:
    def fail() -> None:
        with traincope.run(tmp_path / "run") as run:
            run.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    redact(tmp_path / "run", tmp_path / "shown")
    (fault,) = to_document(traincope.analyze(traincope.open_run(tmp_path / "shown")))["faults"]
    assert fault["kind"] == "exception"
    assert "ZeroDivisionError" in fault["what"]
    assert "test_redaction" not in str(fault)


def test_an_existing_target_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "run")
    with pytest.raises(UsageError, match="already exists"):
        redact(tmp_path / "run", tmp_path)


def test_a_run_that_may_not_be_read_in_full_leaves_no_copy(tmp_path: Path) -> None:
    record(tmp_path / "run")
    names = tmp_path / "run" / "attempt-000" / "rank-00000" / "names.jsonl"
    names.unlink()
    names.mkdir()
    with pytest.raises(UnreadableError, match=f"^cannot read {names}: Is a directory; check its mode and disk$"):
        redact(tmp_path / "run", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_devices_name_stays_without_its_uuid(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES[0], tmp_path / "run")
    for path in (tmp_path / "run").glob("attempt-*/rank-*/rank.json"):
        card = json.loads(path.read_text())
        path.write_text(json.dumps(card | {"device": {"name": "NVIDIA H200", "count": 8, "uuid": "plant-uuid"}}))
    redact(tmp_path / "run", tmp_path / "copy")
    for rank in read_run(tmp_path / "copy").ranks:
        assert rank.info.device == {"name": "NVIDIA H200", "count": 8}


def test_looks_at_processes_stay_without_their_stacks(tmp_path: Path) -> None:
    record(tmp_path / "run")
    redact(tmp_path / "run", tmp_path / "copy")
    (rank,) = (tmp_path / "copy").glob("attempt-*/rank-*")
    assert [(look.at_ns, look.state, look.wait_channel, look.stack) for look in read_looks(rank)] == [
        (5, "S", "do_wait", ""),
        (6, "", "", ""),
    ]
