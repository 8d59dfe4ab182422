"""`traincope plan`: a published training's FLOPs, schedules as their papers draw them, their bubbles."""

import json
import shlex
from pathlib import Path

import pytest

from traincope.cli.main import main

COMMAND = """plan flops --layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048 --batch 64 --gpus 64
    --peak-tflops 312 --iteration-seconds 13.75 --recompute selective"""
"""GPT-3 175B in Korthikanti et al., table 5: MFU 51.4 %, HFU 52.8 %."""
WORDS = shlex.split(COMMAND)


def outcome(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capsys.readouterr()
    return captured.out if left.value.code == 0 else f"{left.value.code}: {captured.err}"


def test_json_has_the_papers_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(outcome(capsys, *WORDS, "--format", "json"))
    assert [round(100 * answer[key], 1) for key in ("mfu", "hfu")] == pytest.approx([51.4, 52.8], abs=0.3)
    assert answer["model_tflops_per_gpu"] == pytest.approx(answer["mfu"] * 312)
    assert answer["hardware_flops_per_step"] > answer["model_flops_per_step"]
    assert answer["parameters"] == 96 * 12 * 12288**2 + 51200 * 12288
    assert answer["convention"].endswith("causal attention not halved")


def test_a_model_by_name_is_the_model_by_its_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-3 has its name since table 3 of the same paper. A shape besides replaces that of the model."""
    step = shlex.split("--seq 2048 --batch 64 --gpus 64 --peak-tflops 312 --iteration-seconds 13.75")
    options = [*step, "--recompute", "selective"]
    assert outcome(capsys, "plan", "flops", "--model", "gpt3-175b", *options) == outcome(capsys, *WORDS)
    fewer = outcome(capsys, "plan", "flops", "--model", "gpt3-175b", "--layers", "48", *options, "--format", "json")
    assert json.loads(fewer)["parameters"] == 48 * 12 * 12288**2 + 51200 * 12288


def test_a_budget_has_states_flops_years_and_days(capsys: pytest.CaptureFixture[str]) -> None:
    """405B on 15e12 tokens: 6 N D = 3.645e25. A year of an H100 is 989.4e12 x 365 x 86,400 = 3.120e22 FLOP."""
    words = shlex.split("plan budget --parameters 405e9 --tokens 15e12 --gpu h100 --gpus 16384 --mfu 0.4 --dp 4")
    answer = json.loads(outcome(capsys, *words, "--format", "json"))
    assert answer["flops"] == pytest.approx(3.645e25)
    assert answer["gpu_years_at_peak"] == pytest.approx(1168, abs=1)
    assert answer["days"] == pytest.approx(1168.2 * 365 / 16384 / 0.4, abs=0.05)
    totals = [stage["total_bytes"] / 405e9 for stage in answer["stages"]]
    assert totals == pytest.approx([16, 4 + 12 / 4, 2 + 14 / 4, 16 / 4])
    shown = outcome(capsys, *words)
    assert "3.645e+25 FLOP" in shown
    assert "65.1 days at 40.0 % MFU" in shown


def test_a_budget_of_experts_has_the_flops_of_those_that_a_token_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Mixtral 8x7B: 46.7 B parameters, of which a token uses 12.9 B (arXiv:2401.04088, section 2.1)."""
    words = shlex.split("plan budget --model mixtral-8x7b --tokens 1e12")
    answer = json.loads(outcome(capsys, *words, "--format", "json"))
    assert (answer["parameters"] / 1e9, answer["active_parameters"] / 1e9) == pytest.approx((46.7, 12.9), rel=5e-3)
    assert answer["flops"] == 6 * answer["active_parameters"] * 1e12
    assert "parameters that a token uses" in outcome(capsys, *words)


def test_a_budget_by_a_models_name_counts_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(outcome(capsys, "plan", "budget", "--model", "gpt3-175b", "--no-master", "--format", "json"))
    assert answer["parameters"] == 96 * 12 * 12288**2 + 51200 * 12288
    assert answer["bytes_per_parameter"] == 12
    assert (len(answer["stages"]), answer["flops"], answer["days"]) == (1, None, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("memory", "the model's shapes lack --layers, --hidden, --heads, --vocab, --seq; give them, or a model"),
        ("memory --model llama3-8b", "llama3-8b does not state the tokens per sequence of the training; give --seq"),
        ("comm --model llama3-8b --seq 8 --experts 2", "shapes of experts go with a model given by shapes"),
        ("budget --parameters 7e9 --mfu 40", "--mfu is 40; it is a share of the peak, e.g. 0.4"),
        ("budget --parameters 7e9 --gpus 8", "--gpus needs the peak of one; give --gpu, e.g. --gpu h100"),
        ("budget --parameters 7e9 --gpu h100", "--gpu decides the time of a training; give its --tokens"),
    ],
)
def test_what_a_question_lacks_is_one_sentence(capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert outcome(capsys, "plan", *words.split()).startswith(f"2: traincope plan: {sentence}")


def test_text_has_the_same_numbers_and_the_convention(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, *WORDS, "--causal-half") == (
        "MFU  50.7 %   139 PFLOP per step, 158 TFLOP/s per GPU\n"
        "HFU  51.4 %   141 PFLOP per step, 160 TFLOP/s per GPU\n"
        "174,575,321,088 parameters in matrices\n"
        "Korthikanti et al. 2022, equations 7 and 8; selective recomputation counts three\n"
        "times, as in equation 8, but causal attention halved\n"
    )


def test_impossible_arguments_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, *WORDS, "--heads", "7") == (
        "2: traincope plan: hidden = 12288, heads = 7 and kv_heads = 7 must each be a multiple of the next; "
        "change one of them\n"
    )
    assert outcome(capsys, *WORDS, "--gpus", "0") == "2: traincope plan: --gpus is 0; it must be greater than 0\n"


def test_only_active_experts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Mixtral 8x7B: 46.7 billion parameters, 12.9 of them active."""
    shape = """plan flops --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --gated-mlp --vocab 32000
        --untied --seq 4096 --experts 8 --top-k 2 --batch 8 --gpus 8 --peak-tflops 989 --iteration-seconds 1"""
    assert outcome(capsys, *shlex.split(shape), "--convention", "6n") == (
        "MFU  32.0 %   2.53 PFLOP per step, 317 TFLOP/s per GPU\n"
        "HFU  32.0 %   2.53 PFLOP per step, 317 TFLOP/s per GPU\n"
        "46,702,526,464 parameters in matrices, 12,879,659,008 of them active\n"
        "6 N per token, without attention: Kaplan et al. 2020, section 2.1\n"
    )


def test_documents_packed_into_sequences_attend_within_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """Half as many squares leave half of 12 L s^2 h a sequence."""
    answers = [
        json.loads(outcome(capsys, *WORDS, "--format", "json", *more))
        for more in ((), ("--squared-lengths", str(64 * 2048**2 // 2)))
    ]
    assert answers[0]["model_flops_per_step"] - answers[1]["model_flops_per_step"] == 6 * 96 * 64 * 2048**2 * 12288
    assert answers[1]["convention"].endswith("within documents only: causal attention not halved")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("--experts 4 --expert-ffn 0", "experts: ffn is 0; it must be at least 1"),
        ("--top-k 2", "--top-k has no effect without --experts; give the number of experts"),
        (
            "--convention palm --causal-half",
            "--convention palm cannot halve attention or keep it within documents; use --convention korthikanti",
        ),
    ],
)
def test_contradicting_arguments_are_refused(capsys: pytest.CaptureFixture[str], more: str, sentence: str) -> None:
    assert outcome(capsys, *WORDS, *shlex.split(more)) == f"2: traincope plan: {sentence}\n"


def test_1f1b_is_drawn_as_narayanan_draws_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narayanan et al. 2021, arXiv:2104.04473, figure 4 (top), but one unit of time is a forward."""
    monkeypatch.setenv("COLUMNS", "80")
    assert outcome(capsys, "plan", "schedule", "1f1b", "--pp", "4", "--microbatches", "8") == (
        "1F1B: 4 ranks, 8 microbatches\n"
        "    0 F0F1F2F3············B0  F4B1  F5B2  F6B3  F7B4  ··B5  ··B6  ··B7   27.3 %\n"
        "    1 ··F0F1F2········B0  F3B1  F4B2  F5B3  F6B4  F7B5  ··B6  ··B7  ···· 27.3 %\n"
        "    2 ····F0F1····B0  F2B1  F3B2  F4B3  F5B4  F6B5  F7B6  ··B7  ········ 27.3 %\n"
        "    3 ······F0B0  F1B1  F2B2  F3B3  F4B4  F5B5  F6B6  F7B7  ············ 27.3 %\n"
        "    F forward, B backward; left: rank; right: its idle share\n"
        "bubble: 27.3 % of total time, 37.5 % of ideal time; by formula 27.3 %, (P - 1)\n"
        "(F + B) (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1)\n"
    )


def test_virtual_stages_make_1f1b_the_interleaved_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split("plan schedule 1f1b --pp 4 --microbatches 8 --virtual 2 --format json")
    answer = json.loads(outcome(capsys, *words))
    assert (answer["schedule"], answer["virtual"], answer["span"]) == ("interleaved", 2, 57)
    assert answer["bubble_ratio"] == pytest.approx(9 / 57) == answer["formula_ratio"]
    assert answer["bubble_over_ideal"] == pytest.approx(9 / 48)
    last = answer["timetable"][3]
    assert (last["rank"], last["stages"]) == (3, [3, 7])
    assert last["actions"][0] == {"kind": "F", "stage": 3, "microbatch": 0, "start": 3, "end": 4}


def test_times_change_the_drawing_and_its_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split("plan schedule zb-1p --pp 2 --microbatches 4 --backward-weight 0.5 --format json")
    answer = json.loads(outcome(capsys, *words))
    assert answer["span"] == pytest.approx(4 * 2.5 + 1.5)
    assert answer["formula_ratio"] == pytest.approx(1.5 / 11.5)


def test_a_drawing_too_wide_for_the_terminal_is_refused_with_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert outcome(capsys, "plan", "schedule", "1f1b", "--pp", "4", "--microbatches", "8") == (
        "2: traincope plan: the drawing needs 46 columns and the terminal has 40; make the terminal wider, give fewer "
        "microbatches, or use --format json\n"
    )


def test_bubbles_of_all_schedules_in_both_conventions(capsys: pytest.CaptureFixture[str]) -> None:
    answers = json.loads(outcome(capsys, *shlex.split("plan bubble --pp 4 --microbatches 8 --format json")))
    ratios = {answer["schedule"]: (answer["bubble_ratio"], answer["bubble_over_ideal"]) for answer in answers}
    assert ratios["1f1b"] == pytest.approx((3 / 11, 3 / 8))
    assert ratios["interleaved"] == pytest.approx((3 / 19, 3 / 16))
    assert ratios["zb-1p"] == pytest.approx((1 / 9, 1 / 8))
    assert ratios["zb-v"] == pytest.approx((3 / 51, 3 / 48))
    assert ratios["naive"] == pytest.approx((3 / 4, 3))
    assert ratios["dualpipev"] == (None, None)
    assert ratios["zb-h2"] == (0, 0)
    assert [answer["schedule"] for answer in answers if (answer["formula"] or "").startswith("formula only")] == [
        "zb-h2"
    ]
    for answer in answers[:-1]:
        assert answer["bubble_ratio"] in (None, pytest.approx(answer["played_out_ratio"]))
        assert answer["bubble_over_ideal"] in (None, pytest.approx(answer["played_out_over_ideal"]))


def test_transfers_lengthen_a_bubble_as_its_paper_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Qi et al. 2023, arXiv:2401.10241, its table of bubble rates: the 1.5 B model, 8 ranks, 24 microbatches."""
    times = "--forward 18.522 --backward-input 18.086 --backward-weight 9.337 --transfer 0.601"
    answers = json.loads(outcome(capsys, *shlex.split(f"plan bubble --pp 8 --microbatches 24 {times} --format json")))
    ratios = {answer["schedule"]: answer["played_out_ratio"] for answer in answers}
    assert (round(ratios["1f1b"], 4), round(ratios["zb-1p"], 4)) == (0.2431, 0.1585)


def test_a_schedule_that_cannot_have_a_size_shows_its_requirement(capsys: pytest.CaptureFixture[str]) -> None:
    text = outcome(capsys, *shlex.split("plan bubble --pp 4 --microbatches 6"))
    assert "    interleaved  needs a multiple of 4 microbatches, one for each rank, not 6\n" in text
    assert "    1f1b                       1   33.3 %    50.0 %     33.3 %    50.0 %\n" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("plan schedule gpipe --pp 2 --microbatches 4 --virtual 2", "gpipe needs 1 stage per rank, not 2"),
        ("plan schedule 1f1b --pp 0 --microbatches 4", "ranks is 0; it must be at least 1"),
        ("plan bubble --pp 2 --microbatches 4 --forward 0", "forward is 0; it must be greater than 0"),
        ("plan bubble --pp 2 --microbatches 4 --virtual 0", "chunks is 0; it must be at least 1"),
    ],
)
def test_an_impossible_pipeline_is_one_sentence(capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert outcome(capsys, *shlex.split(words)) == f"2: traincope plan: {sentence}\n"


@pytest.mark.parametrize(("degree", "is_rejected"), [(1, True), (8, False)])
def test_a_plan_that_does_not_fit_has_no_predicted_mfu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], degree: int, *, is_rejected: bool
) -> None:
    """Llama 3 8B with whole weights and optimizer on each GPU needs over 72 GiB."""
    plan = tmp_path / "train.toml"
    plan.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
        f"[parallelism]\ndata_parallel_shard_degree = {degree}\ndata_parallel_replicate_degree = {8 // degree}\n"
    )
    with pytest.raises(SystemExit):
        main(["plan", "check", str(plan), "--gpu", "h100", "--gpus", "8"])
    printed = capsys.readouterr().out
    assert ("does-not-fit" in printed, "predicted MFU" in printed) == (is_rejected, not is_rejected)
