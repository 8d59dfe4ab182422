"""`traincope plan flops` on a published training."""

import json
import shlex

import pytest

from traincope.cli.main import main

COMMAND = """plan flops --layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048 --batch 64 --gpus 64
    --peak-tflops 312 --iteration-seconds 13.75 --recompute selective"""
"""GPT-3 175B in Korthikanti et al., table 5: MFU 51.4 %, HFU 52.8 %."""
WORDS = shlex.split(COMMAND)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capsys.readouterr()
    return captured.out if left.value.code == 0 else f"{left.value.code}: {captured.err}"


def test_json_has_the_papers_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(said(capsys, *WORDS, "--format", "json"))
    assert [round(100 * answer[key], 1) for key in ("mfu", "hfu")] == pytest.approx([51.4, 52.8], abs=0.3)
    assert answer["model_tflops_per_gpu"] == pytest.approx(answer["mfu"] * 312)
    assert answer["hardware_flops_per_step"] > answer["model_flops_per_step"]
    assert answer["parameters"] == 96 * 12 * 12288**2 + 51200 * 12288
    assert answer["convention"].endswith("causal attention not halved")


def test_text_says_the_same_and_the_convention(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *WORDS, "--causal-half") == (
        "MFU  50.7 %   139 PFLOP a step, 158 TFLOP/s a GPU\n"
        "HFU  51.4 %   141 PFLOP a step, 160 TFLOP/s a GPU\n"
        "174,575,321,088 parameters in matrices\n"
        "Korthikanti et al. 2022, equations 7 and 8, but causal attention halved\n"
    )


def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *WORDS, "--heads", "7") == (
        "2: traincope plan: hidden = 12288, heads = 7 and kv_heads = 7 must each be a multiple of the next; "
        "change one of them\n"
    )
    assert said(capsys, *WORDS, "--gpus", "0") == "2: traincope plan: --gpus 0 must be more than 0\n"
