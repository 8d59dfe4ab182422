import io
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console

from tests.report.example import analysis
from traincope.analysis import Utilization
from traincope.analysis.efficiency.peaks import Peak
from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.efficiency.work import JobWork, RankWork
from traincope.report.text.text import render

RANK = RankWork(model={"float32": 1.234e12}, executed={"float32": 1.3e12}, recomputed={"float32": 0.066e12})
WORK = JobWork(ranks={0: RANK}, convention="as counted, causal attention halved", coverage_ratio=1.0)
KNOWN = Utilization(
    ratios=Ratios(
        mfu=0.412,
        mfu_paper=0.4205,
        mfu_job=0.38,
        hfu=0.43,
        ideal_ns={"float32": 4e7},
        waterfall={"ideal": 0.412, "redundant_compute": 0.003, "kernel_inefficiency": 0.2605, "optimizer": 0.02},
    ),
    tokens_per_second=3970.4,
    reason=None,
    work=WORK,
    peak=Peak(device="Some CPU", flops={"float32": 31.2e9}, source="measured"),
)


def with_ratios(used: Utilization = KNOWN, **ratios: float | None) -> Utilization:
    return replace(used, ratios=replace(used.ratios, **ratios))  # type: ignore[arg-type]


def with_rank(**flops: Mapping[str, float] | None) -> Utilization:
    return replace(KNOWN, work=replace(WORK, ranks={0: replace(RANK, **flops)}))  # type: ignore[arg-type]


def shown(utilization: Utilization) -> str:
    file = io.StringIO()
    render(replace(analysis(), utilization=utilization), Console(file=file, width=80))
    text = file.getvalue()
    return text[text.index("UTILIZATION") : text.index("PIPELINE BUBBLE")]


def test_the_mfu_has_its_peak_and_its_convention() -> None:
    assert shown(KNOWN) == (
        "UTILIZATION  3,970 tokens/s; MFU 41.2 % over the counted steps\n"
        "    peak: 31.2 GFLOP/s float32 per rank, Some CPU: measured\n"
        "    model FLOPs: 1.23 TFLOP per step as counted, causal attention halved\n"
        "    executed FLOPs: 1.30 TFLOP per step, 5.1 % recomputed and 0.0 % redundant\n"
        "    forward and backward, of step time: 41.2 % the model at peak, 0.3 %\n"
        "    redundant compute, 26.1 % kernel inefficiency\n"
        "    HFU 43.0 %: all executed FLOPs, recomputed ones included\n"
        "    MFU (paper) 42.0 %: causal attention whole, as PaLM, nanoGPT and torchtitan\n"
        "    print it; halved, as Megatron-LM and MaxText do, 41.2 %\n"
        "    MFU (job) 38.0 %: over the whole job with start-up, restarts and lost steps\n"
        "\n"
    )


def test_executed_flops_are_left_out_if_not_counted() -> None:
    assert "executed FLOPs:" not in shown(with_rank(executed=None, recomputed=None))


def test_declared_flops_above_counted_flops_are_reported_without_negative_redundancy() -> None:
    values = with_rank(executed={"float32": 0.9e12}, recomputed={})
    assert (
        "    model FLOPs: 1.23 TFLOP per step as counted, causal attention halved\n"
        "    executed FLOPs: only 900 GFLOP were counted, and HFU uses them; the declared\n"
        "    FLOPs are too high, or some kernels are not counted\n"
    ) in shown(values)


def test_an_mfu_above_the_peak_is_reported_as_wrong() -> None:
    wrong = "an MFU above 100 % is impossible"
    assert wrong in shown(with_ratios(mfu=1.02))
    assert wrong not in shown(with_ratios(mfu=1.0))


def test_an_unknown_job_mfu_has_its_reason() -> None:
    restarted = with_ratios(replace(KNOWN, job_reason="attempt 1 loaded nothing"), mfu_job=None)
    assert "    MFU (job) unknown: attempt 1 loaded nothing\n" in shown(restarted)


def test_an_unknown_mfu_has_its_reason_and_the_flops_per_step() -> None:
    unknown = with_ratios(replace(KNOWN, reason="the peak of Some CPU is not known"), mfu=None, hfu=None)
    assert shown(unknown) == (
        "UTILIZATION  3,970 tokens/s; MFU unknown: the peak of Some CPU is not known\n"
        "    model FLOPs: 1.23 TFLOP per step as counted, causal attention halved\n"
        "    executed FLOPs: 1.30 TFLOP per step, 5.1 % recomputed and 0.0 % redundant\n\n"
    )


def test_the_hfu_of_shapes_stands_next_to_an_unknown_mfu() -> None:
    work = replace(WORK, model_reason="a compiled backward")
    unknown = with_ratios(replace(KNOWN, work=work, reason="a compiled backward"), mfu=None)
    assert " ".join(shown(unknown).split()) == (
        "UTILIZATION 3,970 tokens/s; MFU unknown: a compiled backward; HFU 43.0 %: all FLOPs of the recorded shapes"
    )
