"""Questions of `plan` answer any numbers with valid numbers or with one sentence."""

import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import examples
from traincope.cli.main import main

MODEL = {"layers": "4", "hidden": "64", "heads": "4", "vocab": "256", "seq": "128"}
OF_MODEL = ("kv-heads", "head-dim", "ffn", "experts", "expert-ffn", "top-k", "shared-experts", "dense-layers")
OF_LAYOUT = ("dp", "tp", "pp", "cp", "ep", "microbatches", "micro-batch", "virtual")
STEP = {"batch": "8", "gpus": "2", "peak-tflops": "312", "iteration-seconds": "0.5"}
SIZE = {"pp": "2", "microbatches": "4"}
OF_TIMES = ("virtual", "forward", "backward-input", "backward-weight", "transfer")
FAILURES = {"mtbf-hours": "168", "save-seconds": "40"}
QUESTIONS = {
    "flops": (MODEL | STEP, (*OF_MODEL, "squared-lengths")),
    "memory": (MODEL, (*OF_MODEL, *OF_LAYOUT)),
    "comm": (MODEL, (*OF_MODEL, *OF_LAYOUT)),
    "schedule zb-1p": (SIZE, OF_TIMES),
    "schedule interleaved": (SIZE, OF_TIMES),
    "bubble": (SIZE, OF_TIMES),
    "cadence": (FAILURES, ("parts", "restart-seconds", "step-seconds", "every-seconds")),
}
"""Question -> the options that it needs, and the optional ones."""

SIZES = ("0", "-1", "1", "2", "3", "7", "-0.0", "1e-12", "1e15", "1000000000000000")
NONSENSE = ("inf", "-inf", "nan", "1e-320", "1e300", "1e16", "9" * 401, "9" * 5000, "", "x", "0x10")


def outcome(*words: str) -> tuple[object, str, str]:
    """Exit code, and what was printed."""
    out, error = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(error), pytest.raises(SystemExit) as left:
        main(["plan", *words])
    return left.value.code, out.getvalue(), error.getvalue()


@st.composite
def questions(draw: st.DrawFn) -> list[str]:
    """Some of its numbers are of any size, or none."""
    name = draw(st.sampled_from(sorted(QUESTIONS)))
    needed, allowed = QUESTIONS[name]
    others = draw(st.lists(st.sampled_from([*needed, *allowed]), min_size=1, max_size=3, unique=True))
    given_ = needed | {other: draw(st.sampled_from(SIZES + NONSENSE)) for other in others}
    return [*name.split(), *(f"--{key}={value}" for key, value in given_.items())]


def not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(500))
@given(words=questions())
def test_any_number_gives_valid_json_or_one_sentence(words: list[str]) -> None:
    code, out, error = outcome(*words, "--format", "json")
    assert code in (0, 2)
    if code == 0:
        json.loads(out, parse_constant=not_json)
    else:
        assert error.splitlines()[-1].startswith("traincope plan")


FLOPS = "flops --layers 4 --hidden 64 --heads 4 --vocab 256 --seq 128 --gpus 2"
NOT_A_NUMBER = "is not a number between 1e-12 and 1e+15; is its unit right?"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("cadence --mtbf-hours 1 --save-seconds 1 --every-seconds inf", f"--every-seconds: 'inf' {NOT_A_NUMBER}"),
        ("cadence --mtbf-hours 1 --save-seconds 1 --step-seconds 1e-320", f"--step-seconds: '1e-320' {NOT_A_NUMBER}"),
        ("cadence --mtbf-hours 1e300 --save-seconds 1e300", f"--mtbf-hours: '1e300' {NOT_A_NUMBER}"),
        (f"{FLOPS} --batch 8 --peak-tflops nan --iteration-seconds 1", f"--peak-tflops: 'nan' {NOT_A_NUMBER}"),
        (f"{FLOPS} --batch 8 --peak-tflops fast --iteration-seconds 1", "--peak-tflops: 'fast' is not a number"),
        (
            f"{FLOPS} --batch 1{'0' * 400} --peak-tflops 1 --iteration-seconds 1",
            f"--batch: '1{'0' * 23}'... is not a whole number of at most 1e+15",
        ),
        ("schedule 1f1b --pp 2 --microbatches 4 --transfer 1e300", f"--transfer: '1e300' {NOT_A_NUMBER}"),
    ],
)
def test_an_out_of_range_number_is_refused_with_its_argument(words: str, sentence: str) -> None:
    code, out, error = outcome(*shlex.split(words))
    assert (code, out, error.splitlines()[-1].partition("argument ")[2]) == (2, "", sentence)


def test_a_pipeline_that_is_too_large_is_refused() -> None:
    assert outcome("schedule", "1f1b", "--pp", "4097", "--microbatches", "1")[2] == (
        "traincope plan: ranks is 4097; one pipeline must have at most 4096\n"
    )
    assert outcome("schedule", "1f1b", "--pp", "4", "--microbatches", "65537")[2] == (
        "traincope plan: 4 ranks x 65537 microbatches x 1 stages per rank are too many forwards; "
        "their number must be at most 262144, because an order lists each of them\n"
    )


def test_times_of_incompatible_magnitudes_are_refused() -> None:
    """1e-12 in some 1e15: 27 digits, and int64 has 18."""
    words = "schedule 1f1b --pp 2 --microbatches 4 --forward 1e-12 --backward-input 1e15"
    assert outcome(*shlex.split(words))[2] == (
        "traincope plan: a time of 1e-12 is too short to count in a step of 8e+15; give all times in one unit\n"
    )
    answer = json.loads(outcome(*shlex.split(words.replace("1e-12", "1e15")), "--format", "json")[1])
    assert answer["bubble_ratio"] == pytest.approx(1 / 5, abs=1e-9)
