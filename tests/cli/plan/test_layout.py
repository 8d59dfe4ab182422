"""`traincope plan memory`, `comm` and `cadence`: the formulas' numbers as text and JSON, and errors."""

import json
import shlex

import pytest

from traincope.cli.main import main

MODEL = "--layers 4 --hidden 1024 --heads 8 --vocab 2048 --seq 512"
"""A block's matrices have 12 x 2^20 elements, the embedding 2 x 2^20."""


def outcome(capsys: pytest.CaptureFixture[str], words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["plan", *shlex.split(words)])
    captured = capsys.readouterr()
    return captured.out if left.value.code == 0 else f"{left.value.code}: {captured.err}"


def test_memory_of_two_stages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """26 Mi parameters each: 52 MiB of weights and of gradients, 312 of the optimizer over two data ranks.

    A block keeps 0.5 Mi x 34 bytes, twice in flight on the first rank; dropout 0.5 more, the output (4 + 6 x 2) / 2.
    """
    monkeypatch.setenv("COLUMNS", "80")
    assert outcome(capsys, f"memory {MODEL} --pp 2 --dp 2 --zero 1 --microbatches 4 --flash") == (
        "MEMORY  per rank; 4 ranks, 8 sequences per step, 52,428,800 parameters\n"
        "    rank   weights  gradients  optimizer      kept  temporary  held      total\n"
        "    0     52.0 MiB   52.0 MiB  156.0 MiB  69.0 MiB        0 B     2  329.0 MiB\n"
        "    1     52.0 MiB   52.0 MiB  156.0 MiB  42.0 MiB        0 B     1  302.0 MiB\n"
        "    rank: rank of the pipeline; kept: activations of held microbatches\n"
        "    model states: Rajbhandari et al. 2019, section 5; activations: Korthikanti\n"
        "    et al. 2022, table 2\n"
        "    not included: other temporary buffers, the communication library,\n"
        "    fragmentation\n"
    )


def test_replicas_hold_the_shards_of_fewer_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """HSDP: 8 data ranks in 2 replicas hold what 4 data ranks hold."""
    hybrid, full = (
        json.loads(outcome(capsys, f"memory {MODEL} {options} --zero 3 --flash --format json"))["pipeline"]
        for options in ("--dp 8 --replicas 2", "--dp 4")
    )
    assert hybrid == full


def test_memory_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(outcome(capsys, f"memory {MODEL} --dp 4 --zero 3 --gradients fp32 --flash --format json"))
    rank = answer["pipeline"][0]
    parameters = 50 * 2**20
    assert (answer["ranks"], answer["batch"], answer["parameters"]) == (4, 4, parameters)
    assert (rank["weights_bytes"], rank["gradients_bytes"]) == (2 * parameters // 4, parameters)
    assert rank["optimizer_bytes"] == 3 * parameters
    assert rank["activations_bytes"] == (4 * 34 + 1 + 4 + 12 * 2) * 2**19
    assert answer["largest_bytes"] == rank["total_bytes"]


def test_communication_of_two_stages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """52 MiB of gradients over four; four 1 MiB streams a block and one at an end, four microbatches; the embedding."""
    monkeypatch.setenv("COLUMNS", "80")
    text = outcome(capsys, f"comm {MODEL} --pp 2 --dp 4 --tp 2 --no-sequence-parallel --microbatches 4")
    assert text == (
        "COMMUNICATION  of pipeline rank 0; 16 ranks, 16 sequences per step\n"
        "    axis, operation  ranks  count     bytes  on the wire  what\n"
        "    dp all_reduce        4      1  26.0 MiB     39.0 MiB  gradients\n"
        "    tp all_reduce        2     36  36.0 MiB     36.0 MiB  activations\n"
        "    pp send              2      4   4.0 MiB      4.0 MiB  activations\n"
        "    pp all_reduce        2      1   2.0 MiB      2.0 MiB  embedding\n"
        "    total                                       81.0 MiB\n"
        "    on the wire, with rings of n ranks: 2(n-1)/n of an all-reduce, (n-1)/n of\n"
        "    other collectives\n"
        "    total of pipeline rank 1: 81.0 MiB\n"
    )


def test_communication_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(outcome(capsys, f"comm {MODEL} --dp 4 --format json"))
    assert answer["pipeline"][0]["volumes"] == [
        {
            "axis": "dp",
            "operation": "all_reduce",
            "what": "gradients",
            "group_size": 4,
            "count": 1,
            "num_bytes": 100 * 2**20,
            "wire_bytes": 150 * 2**20,
        }
    ]


def test_cadence_of_bloom(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure a week, 40 s a save, 105.2 s an iteration; they saved every 100."""
    words = "cadence --mtbf-hours 168 --save-seconds 40 --step-seconds 105.2 --every-seconds 10520"
    assert outcome(capsys, words) == (
        "CHECKPOINTS  a failure every 168 h 0 min, a save costs 40.0 s\n"
        "    interval by  training between saves  steps  goodput\n"
        "    Young 1974               1 h 55 min     66   98.9 %\n"
        "    Daly 2006                1 h 55 min     65   98.9 %\n"
        "    yours                    2 h 55 min    100   98.8 %\n"
    )


def test_cadence_of_many_parts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = "cadence --mtbf-hours 50000 --parts 10000 --save-seconds 10 --restart-seconds 300 --format json"
    answer = json.loads(outcome(capsys, words))
    assert answer["mtbf_hours"] == 5
    young, daly = answer["intervals"]
    assert young["interval_seconds"] == 600
    assert (young["steps"], daly["formula"]) == (None, "Daly 2006")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"memory {MODEL} --tp 3", "tp is 3; it must divide the 8 heads"),
        (f"comm {MODEL} --dp 2 --ep 2", "ep = 2 needs experts, and the model has none; use ep = 1"),
        (f"comm {MODEL} --pp 0", "pp is 0; it must be at least 1"),
        ("cadence --mtbf-hours 0 --save-seconds 40", "--mtbf-hours is 0; it must be greater than 0"),
        (
            "cadence --mtbf-hours 1 --save-seconds 40 --restart-seconds -1",
            "--restart-seconds is -1; it must be at least 0",
        ),
    ],
)
def test_impossible_arguments_are_one_sentence(capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert outcome(capsys, words) == f"2: traincope plan: {sentence}\n"


@pytest.mark.parametrize("question", ["flops", "memory", "comm", "schedule", "bubble", "cadence"])
def test_every_questions_example_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    example = " ".join(outcome(capsys, f"{question} --help").split("example: traincope plan ")[1].split())
    assert not outcome(capsys, example).startswith(("1:", "2:"))
