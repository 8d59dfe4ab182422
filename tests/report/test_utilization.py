import io

from rich.console import Console

from tests.report.example import document
from traincope.report.schema import Utilization
from traincope.report.text import render_document

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
    waterfall={"ideal": 0.412, "redundant": 0.003, "kernel_inefficiency": 0.2605, "optimizer": 0.02},
    peak_flops={"float32": 31.2e9},
    peak_source="Some CPU: measured",
    experts=None,
)


def shown(utilization: Utilization) -> str:
    file = io.StringIO()
    render_document(document() | {"utilization": utilization}, Console(file=file, width=80))
    text = file.getvalue()
    return text[text.index("UTILIZATION") : text.index("PIPELINE BUBBLE")]


def test_an_mfu_says_of_what_it_is_a_share_and_in_which_convention() -> None:
    assert shown(KNOWN) == (
        "UTILIZATION  3,970 tokens/s; MFU 41.2 %, HFU 43.0 %\n"
        "    of 31.2 GFLOP/s float32 a rank, Some CPU: measured\n"
        "    1.23 TFLOP a step as counted, causal attention halved\n"
        "    1.30 TFLOP ran, 5.1 % of it recomputed and 0.0 % redundant\n"
        "    of forward and backward 41.2 % is the model at peak, 0.3 % is redundant,\n"
        "    26.1 % below peak\n"
        "    not halved: 42.0 %; over the whole run: 38.0 %\n"
        "\n"
    )


def test_what_ran_is_left_out_where_it_was_not_counted() -> None:
    told = KNOWN | {"executed_flops_per_step": None, "recomputed_flops_per_step": None}
    assert " ran, " not in shown(told)


def test_what_was_told_beyond_what_was_counted_is_said_and_is_no_redundancy_below_zero() -> None:
    told = KNOWN | {"executed_flops_per_step": 0.9e12, "redundant_flops_per_step": None}
    assert (
        "    1.23 TFLOP a step as counted, causal attention halved\n"
        "    only 900 GFLOP of it was counted, and makes the HFU: what was told is too\n"
        "    much, or kernels ran that are not counted\n"
    ) in shown(told)


def test_an_mfu_beyond_the_peak_is_said_to_be_wrong() -> None:
    wrong = "which is more than the peak allows"
    assert wrong in shown(KNOWN | {"mfu": 1.02})
    assert wrong not in shown(KNOWN | {"mfu": 1.0})


def test_what_is_not_known_of_the_whole_run_alone_says_why() -> None:
    restarted = KNOWN | {"mfu_job": None, "mfu_job_reason": "attempt 1 loaded nothing"}
    assert "    not halved: 42.0 %; over the whole run: unknown, attempt 1 loaded nothing\n" in shown(restarted)


def test_an_unknown_one_says_why() -> None:
    unknown = KNOWN | {"mfu": None, "reason": "the peak of Some CPU is not known"}
    assert shown(unknown) == "UTILIZATION  3,970 tokens/s; MFU unknown: the peak of Some CPU is not known\n\n"
