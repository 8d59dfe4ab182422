import io

from rich.console import Console

from tests.report.example import document
from traincope.report.schema import Utilization
from traincope.report.text.text import render_document

KNOWN = Utilization(
    mfu=0.412,
    mfu_paper=0.4205,
    mfu_job=0.38,
    mfu_job_reason=None,
    hfu=0.43,
    tokens_per_second=3970.4,
    flops_convention="as counted, causal attention halved",
    reason=None,
    model_flops_per_step=1.234e12,
    executed_flops_per_step=1.3e12,
    recomputed_flops_per_step=0.066e12,
    redundant_flops_per_step=0.0,
    coverage_ratio=1.0,
    ideal_ns={"float32": 4e7},
    waterfall={"ideal": 0.412, "redundant_compute": 0.003, "kernel_inefficiency": 0.2605, "optimizer": 0.02},
    peak_flops={"float32": 31.2e9},
    peak_source="Some CPU: measured",
    experts=None,
)


def shown(utilization: Utilization) -> str:
    file = io.StringIO()
    render_document(document() | {"utilization": utilization}, Console(file=file, width=80))
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
    values = KNOWN | {"executed_flops_per_step": None, "recomputed_flops_per_step": None}
    assert "executed FLOPs:" not in shown(values)


def test_declared_flops_above_counted_flops_are_reported_without_negative_redundancy() -> None:
    values = KNOWN | {"executed_flops_per_step": 0.9e12, "redundant_flops_per_step": None}
    assert (
        "    model FLOPs: 1.23 TFLOP per step as counted, causal attention halved\n"
        "    executed FLOPs: only 900 GFLOP were counted, and HFU uses them; the declared\n"
        "    FLOPs are too high, or some kernels are not counted\n"
    ) in shown(values)


def test_an_mfu_above_the_peak_is_reported_as_wrong() -> None:
    wrong = "an MFU above 100 % is impossible"
    assert wrong in shown(KNOWN | {"mfu": 1.02})
    assert wrong not in shown(KNOWN | {"mfu": 1.0})


def test_an_unknown_job_mfu_has_its_reason() -> None:
    restarted = KNOWN | {"mfu_job": None, "mfu_job_reason": "attempt 1 loaded nothing"}
    assert "    MFU (job) unknown: attempt 1 loaded nothing\n" in shown(restarted)


def test_an_unknown_mfu_has_its_reason_and_the_flops_per_step() -> None:
    unknown = KNOWN | {"mfu": None, "hfu": None, "reason": "the peak of Some CPU is not known"}
    assert shown(unknown) == (
        "UTILIZATION  3,970 tokens/s; MFU unknown: the peak of Some CPU is not known\n"
        "    model FLOPs: 1.23 TFLOP per step as counted, causal attention halved\n"
        "    executed FLOPs: 1.30 TFLOP per step, 5.1 % recomputed and 0.0 % redundant\n\n"
    )


def test_the_hfu_of_shapes_stands_next_to_an_unknown_mfu() -> None:
    unknown = KNOWN | {"mfu": None, "model_flops_per_step": None, "reason": "a compiled backward"}
    assert " ".join(shown(unknown).split()) == (
        "UTILIZATION 3,970 tokens/s; MFU unknown: a compiled backward; HFU 43.0 %: all FLOPs of the recorded shapes"
    )
