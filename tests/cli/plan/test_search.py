"""`traincope plan search` and `plan check`: their outputs, files, exit codes and refusals."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.plan.test_plan import outcome
from traincope.cli.plan.search.text import winner
from traincope.engine.config.load import load_config

SEARCH = [
    "plan",
    "search",
    "--model",
    "llama3-8b",
    "--seq",
    "8192",
    "--gpu",
    "h100",
    "--gpus",
    "16",
    "--batch",
    "64",
    "--tp",
    "2",
    "--cp",
    "1",
    "--micro-batch",
    "1",
]


def test_the_answer_holds_every_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    words = (*SEARCH, "--price-per-gpu-hour", "2", "--currency", "eur", "--emit", str(file))
    answer = json.loads(outcome(capsys, *words, "--format", "json"))
    best, *others = answer["ranked"]
    assert [each["step_seconds"] for each in answer["ranked"]] == sorted(
        each["step_seconds"] for each in answer["ranked"]
    )
    assert sum(best["parts"].values()) == pytest.approx(best["step_seconds"])
    assert best["tokens_per_second"] == pytest.approx(64 * 8192 / best["step_seconds"])
    assert best["money"] == pytest.approx(2 * best["gpu_hours"])
    assert f"price: {2 * best['gpu_hours']:,.2f} EUR" in list(winner(answer))
    assert [each["place"] for each in answer["comparisons"]] == [2, 3, 4]
    for comparison, other in zip(answer["comparisons"], others, strict=False):
        assert sum(comparison["parts"].values()) == pytest.approx(other["step_seconds"] - best["step_seconds"])
    config = load_config(file)
    assert (config.parallel.world_size, config.parallel.tp, config.train.batch) == (16, 2, 64)


def test_text_and_page_show_the_same_layouts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    text = outcome(capsys, *SEARCH, "--top", "2")
    assert outcome(capsys, *SEARCH, "--top", "2", "--format", "html", "-o", str(page)) == ""
    first = text.splitlines()[2].split("  ")
    assert text.startswith("SEARCH  8.03 billion parameters on 16 H100 SXM, 64 sequences of 8,192 tokens\n")
    for cell in filter(None, map(str.strip, first)):
        assert f">{cell}</td>" in page.read_text()


def test_an_interval_is_printed_and_every_format_says_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """The overlap alone bounds no step: the rates are uncertain too."""
    (best,) = (answer := json.loads(outcome(capsys, *SEARCH, "--top", "1", "--format", "json")))["ranked"]
    assert {"best_seconds", "worst_seconds"}.isdisjoint(best)
    interval = best["interval"]
    names = ("other_low_seconds", "low_seconds", "high_seconds", "other_high_seconds")
    edges = [interval[name] for name in names]
    assert edges == sorted(edges)
    assert interval["low_seconds"] < best["step_seconds"] < interval["high_seconds"]
    for kind in ("text", "html"):
        shown = " ".join(outcome(capsys, *SEARCH, "--top", "1", "--format", kind).split())
        assert f"compared with {answer['checked']}" in shown
        assert "80.0 % interval of the step: " in shown


def test_the_times_of_operators_and_the_rest_of_a_step_sum(capsys: pytest.CaptureFixture[str]) -> None:
    """And `--explain` lists them, with the constants that they stand on."""
    (best,) = json.loads(outcome(capsys, *SEARCH, "--top", "1", "--format", "json"))["ranked"]
    parts = best["parts"]
    work = sum(parts.get(name, 0.0) for name in ("products and attention", "recomputation", "other operators"))
    assert sum(each["step_seconds"] for each in best["operators"]) == pytest.approx(work)
    text = outcome(capsys, *SEARCH, "--top", "1", "--explain")
    assert "OPERATORS  of the fastest layout, on one rank" in text
    assert "    attention: attention 0.59, attention_head 15.2, attention_tokens 588\n" in text
    assert all(f"    {each['name']}" in text for each in best["operators"] if len(each["name"]) < 15)


def test_a_caveat_is_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SEARCH, "--gpu", "mi300x", "--top", "1")
    assert json.loads(outcome(capsys, *SEARCH, "--format", "json"))["caveats"] == []
    assert len(json.loads(outcome(capsys, *words, "--format", "json"))["caveats"]) == 1
    for kind in ("text", "html"):
        assert "caveat: no published training on MI300X" in " ".join(outcome(capsys, *words, "--format", kind).split())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("--gpus 0", "--gpus is 0; it must be greater than 0"),
        (
            "--gpu h1000",
            "--gpu h1000 is not known; did you mean h100? The choices are a100, h100, h200, b200, mi300x, ",
        ),
        ("--model llama3", "llama3 is not a model; did you mean llama3-8b?"),
        ("--batch 0", "--batch is 0; it must be greater than 0"),
        ("--reserve 1.5", "reserve is 1.5; it must be at least 0 and below 1"),
    ],
)
def test_impossible_searches_are_one_sentence(capsys: pytest.CaptureFixture[str], more: str, sentence: str) -> None:
    printed = outcome(capsys, *SEARCH, *more.split())
    assert printed.startswith(f"2: traincope plan: {sentence}")
    assert printed.count("\n") == 1


# -- plans of every framework ---------------------------------------------------------------------

ON_H100 = "--gpu h100 --gpus"
TITAN = """
[training]
seq_len = 8192
local_batch_size = 16
global_batch_size = 64
max_norm = 0.0
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
[checkpoint]
enable = true
interval = 500
[activation_checkpoint]
mode = "none"
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
    "zero_optimization": {"stage": 3},
    "fp16": {"enabled": True, "fp16_master_weights_and_grads": True},
}
MEGATRON = r"""#!/bin/bash
TP=4
GPT_ARGS=" \
    --bf16 --num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 --pad-vocab-size-to 250880 \
    --micro-batch-size 2 --global-batch-size 2048 --clip-grad 1.0 --num-workers 0 --checkpoint-activations \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 12 --save /checkpoints --save-interval 100 \
    "
"""


def checked(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[str, dict[str, dict[str, object]]]:
    """Framework, and broken rules by name."""
    printed = outcome(capsys, "plan", "check", str(path), *words, "--format", "json", "--fail-on", "never")
    answer = json.loads(printed)
    return answer["framework"], {each["rule"]: each for each in answer["broken"]}


def test_a_configuration_of_traincope(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[3] / "examples" / "pp_fsdp_tp.toml"
    framework, broken = checked(capsys, path, *ON_H100.split(), "8")
    assert framework == "traincope"
    assert set(broken) == {
        "few-microbatches",
        "no-checkpoints",
        "loader-without-workers",
        "odd-vocabulary",
        "odd-heads",
    }


def test_torchtitan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each of two passes of the pipeline has 16 microbatches, which are enough for its 4 ranks."""
    path = tmp_path / "titan.toml"
    path.write_text(TITAN)
    framework, broken = checked(capsys, path, *ON_H100.split(), "64", "--domain", "4")
    assert framework == "torchtitan"
    assert set(broken) == {"tp-beyond-domain", "no-clipping", "blocking-checkpoints", "no-straggler-watch"}
    assert broken["tp-beyond-domain"]["lost_ratio"] is None


def test_deepspeed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Weights and gradients in fp16 leave the optimizer's state in fp32."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED))
    framework, broken = checked(capsys, path, *ON_H100.split(), "8")
    assert framework == "DeepSpeed"
    assert set(broken) == {"no-clipping", "no-straggler-watch"}


def test_megatron(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """BLOOM's arguments, with its variable, on its 384 A100."""
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON)
    framework, broken = checked(capsys, path, "--gpu", "a100", "--gpus", "384", "--price-per-gpu-hour", "2")
    assert framework == "Megatron-LM"
    assert {"loader-without-workers", "blocking-checkpoints", "no-straggler-watch"} <= set(broken)
    assert "few-microbatches" not in broken
    assert isinstance(broken["blocking-checkpoints"]["lost_money"], float)


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 13), ("info", 13), ("never", 0)])
def test_the_exit_code_follows_the_severity(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fail_on: str, code: int
) -> None:
    """Its worst problem is a warning."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1}))
    words = ("plan", "check", str(path), "--gpu", "h100", "--gpus", "8", "--fail-on", fail_on)
    printed = outcome(capsys, *words)
    assert printed.startswith("13: ") == (code == 13)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("plan.toml", "layers = ", "is not valid TOML"),
        ("plan.json", "{", "is not valid JSON"),
        ("plan.json", "{}", "is not a configuration of DeepSpeed"),
        ("plan.yaml", "trainer:\n  devices: 8\nmodel:\n  num_layers: 4\n", "is a configuration of NeMo"),
        ("plan.sh", "echo", "is not a plan: give a .toml"),
        (
            "plan.toml",
            '[parallelism]\ntensor_parallel_degree = "8"\n',
            "parallelism.tensor_parallel_degree is '8'; give a w",
        ),
        ("plan.toml", "[parallelism]\ntensor_parallel_degree = 3\n", "are 3, which does not divide 8 GPUs"),
    ],
)
def test_unclear_plans_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    printed = outcome(capsys, "plan", "check", str(path), *ON_H100.split(), "8")
    assert printed.startswith("2: ")
    assert sentence in printed


def test_an_emitted_layout_is_toml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    outcome(capsys, *SEARCH, "--emit", str(file))
    assert set(tomllib.loads(file.read_text())) >= {"model", "parallel", "train", "checkpoint"}


def test_a_vocabulary_that_has_no_effect_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'
    )
    printed = outcome(capsys, "plan", "check", str(path), *ON_H100.split(), "8", "--vocab", "50257")
    assert printed.startswith("2: ")
    assert "--vocab is for Megatron-LM's arguments" in printed
