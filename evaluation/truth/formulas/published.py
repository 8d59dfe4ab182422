"""python -m evaluation.truth.formulas.published: numbers printed in papers, and the results of traincope.plan.

The tolerance is half of the last printed digit; a comment explains each larger one.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from evaluation.truth.formulas.models import DEEPSEEK_MOE, LLAMA3_405B, MIXTRAL, PALM, gpt
from traincope.plan.cadence import Failures, daly_seconds, young_seconds
from traincope.plan.hardware import find_hardware
from traincope.plan.layout.activations import ActivationPolicy, block_bytes
from traincope.plan.layout.bus import bus_factor
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute, rule_flops, six_n_d, step_flops, utilization_ratio
from traincope.plan.model.precision import Precision, model_states
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.bubble import bubble_ratio, formula_only_ratio
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import timetable

HOUR, DAY = 3600, 86400
BY_HAND = ("6 N D", "12 N / 1024", "(P - 1) / (M + P - 1)", "2 (N - 1) / N")
"""Formulas whose values here are computed by hand; all other sources print theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    source: str
    quantity: str
    truth: float
    """Printed value, or one computed by hand."""
    computed: float
    within: float

    @property
    def printed(self) -> bool:
        """False: computed by hand with the formula that is its source."""
        return self.source not in BY_HAND

    @property
    def error(self) -> float:
        return self.computed - self.truth

    @property
    def holds(self) -> bool:
        return abs(self.error) <= self.within


def rows() -> Iterator[Row]:
    for part in (korthikanti, megatron, llama, palm, parameters, memory, bubbles, zero_bubble, wire, cadence):
        yield from part()


def peak(device: str) -> float:
    spec = find_hardware(device)
    computed_rows = spec and spec.peak("bfloat16")
    assert computed_rows is not None
    return computed_rows


A100 = peak("NVIDIA A100-SXM4-80GB")
H100 = peak("NVIDIA H100 80GB HBM3")


def korthikanti() -> Iterator[Row]:
    """Korthikanti et al. 2022, arXiv:2205.05198, table 5 and section 5; its times are rounded, so 0.3 points."""
    for name, layers, hidden, heads, gpus, seconds, mfu, hfu in (
        ("22B", 48, 6144, 64, 8, 1.10, 41.5, 43.7),
        ("175B", 96, 12288, 96, 64, 13.75, 51.4, 52.8),
        ("530B", 105, 20480, 128, 280, 37.83, 56.0, 57.0),
        ("1T", 128, 25600, 160, 512, 71.49, 56.3, 57.0),
    ):
        batch = 4 if name == "22B" else gpus
        step = step_flops(gpt(layers, hidden, heads), batch=batch, recompute=Recompute.SELECTIVE)
        for quantity, printed, flops in (("MFU", mfu, step.model), ("HFU", hfu, step.hardware)):
            ratio = utilization_ratio(flops, devices=gpus, peak_flops=A100, seconds=seconds)
            yield _row("Korthikanti, table 5", f"{name} {quantity}, %", printed, 100 * ratio, 0.3)
    # Printed as 2.7 % and 1.6 %, the latter cut rather than rounded.
    for name, shape, saved, more in (
        ("GPT-3", gpt(96, 12288, 96), 70, 2.7),
        ("MT-NLG", gpt(105, 20480, 128), 65, 1.6),
    ):
        none, selective = (
            block_bytes(shape, layout=Layout(tp=8), policy=ActivationPolicy(recompute=recompute))
            for recompute in (Recompute.NONE, Recompute.SELECTIVE)
        )
        yield _row("Korthikanti, section 5", f"{name} activations saved, %", saved, 100 * (1 - selective / none), 0.5)
        step = step_flops(shape, batch=1, recompute=Recompute.SELECTIVE)
        overhead = 100 * (step.hardware / step.model - 1)
        yield _row("Korthikanti, section 5", f"{name} FLOPs more, %", more, overhead, 0.05)


def megatron() -> Iterator[Row]:
    """Narayanan et al. 2021, arXiv:2104.04473, table 1, whose rates count full recomputation; and section 5.1."""
    for billions, layers, hidden, heads, tflops, percent in (
        (1.7, 24, 2304, 24, 137, 44),
        (3.6, 30, 3072, 32, 138, 44),
        (7.5, 36, 4096, 32, 142, 46),
        (18.4, 40, 6144, 48, 135, 43),
        (39.1, 48, 8192, 64, 138, 44),
        (76.1, 60, 10240, 80, 140, 45),
        (145.6, 80, 12288, 96, 148, 47),
        (310.1, 96, 16384, 128, 155, 50),
        (529.6, 105, 20480, 128, 163, 52),
        (1008.0, 128, 25600, 160, 163, 52),
    ):
        shape = gpt(layers, hidden, heads)
        # Biases, norms and positions, which traincope leaves out, are up to 0.2 % of the printed numbers.
        allowed = 0.05 + 0.002 * billions
        yield _row("Megatron, table 1", f"{billions}B parameters, 1e9", billions, shape.parameters / 1e9, allowed)
        step = step_flops(shape, batch=1, recompute=Recompute.FULL)
        seconds = equation_3(layers=layers, hidden=hidden) / (tflops * 1e12)
        hfu = utilization_ratio(step.hardware, devices=1, peak_flops=A100, seconds=seconds)
        yield _row("Megatron, table 1", f"{billions}B HFU, %", percent, 100 * hfu, 0.5)
    for name, size, tokens, gpus, tflops, days in (
        ("GPT-3", 175e9, 300e9, 1024, 140, 34),
        ("1T", 1008e9, 450e9, 3072, 163, 84),
    ):
        flops = six_n_d(parameters=size, tokens=tokens, recompute_all=True)
        yield _row("Megatron, section 5.1", f"{name} end to end, days", days, flops / (gpus * tflops * 1e12) / DAY, 0.5)


def equation_3(*, layers: int, hidden: int, sequence: int = 2048, vocabulary: int = 51200) -> float:
    """FLOPs of one sequence as the paper prints them, the basis of its rates."""
    more = sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return 96 * sequence * layers * hidden**2 * (1 + more)


def llama() -> Iterator[Row]:
    """Llama Team 2024, arXiv:2407.21783, table 4: TFLOP/s are printed in tens, so half a point of MFU more."""
    for tflops, percent in ((430, 43), (400, 41), (380, 38)):
        ratio = utilization_ratio(tflops * 1e12, devices=1, peak_flops=H100, seconds=1)
        yield _row("Llama 3, table 4", f"MFU at {tflops} TFLOP/s, %", percent, 100 * ratio, 1)
    flops = six_n_d(parameters=405e9, tokens=15.6e12)
    yield _row("Llama 3, section 1", "405B on 15.6T tokens, 1e25 FLOPs", 3.8, flops / 1e25, 0.05)
    flops = six_n_d(parameters=405e9, tokens=15e12)
    yield _row("6 N D", "405B on 15T tokens, 1e25 FLOPs", 3.645, flops / 1e25, 0.0005)


def palm() -> Iterator[Row]:
    """Chowdhery et al. 2022, arXiv:2204.02311, appendix B: 238.3 k tokens/s on 6144 TPU v4 of 275 TFLOP/s."""
    for quantity, attention, percent in (("MFU", True, 46.2), ("MFU without attention", False, 45.7)):
        flops = rule_flops(PALM, batch=1, attention=attention).model / PALM.sequence * 238.3e3
        ratio = utilization_ratio(flops, devices=6144, peak_flops=275e12, seconds=1)
        yield _row("PaLM, appendix B", f"{quantity}, %", percent, 100 * ratio, 0.05)


def parameters() -> Iterator[Row]:
    yield _row("PaLM, table 1", "540B parameters, 1e9", 540.35, PALM.parameters / 1e9, 0.005)
    # Named after its size, which is 405.9.
    yield _row("Llama 3, table 3", "405B parameters, 1e9", 405, LLAMA3_405B.parameters / 1e9, 1)
    for name, shape, every, active in (("Mixtral 8x7B", MIXTRAL, 46.7, 12.9), ("DeepSeekMoE", DEEPSEEK_MOE, 16.4, 2.8)):
        source = "Mistral AI 2023" if shape is MIXTRAL else "Dai et al. 2024"
        yield _row(source, f"{name} parameters, 1e9", every, shape.parameters / 1e9, 0.05)
        yield _row(source, f"{name} active, 1e9", active, shape.active_parameters / 1e9, 0.05)


def memory() -> Iterator[Row]:
    """Rajbhandari et al. 2019, arXiv:1910.02054, figure 1: 7.5 B parameters on 64 ranks."""
    for zero, gigabytes in enumerate((120, 31.4, 16.6, 1.9)):
        states = model_states(7_500_000_000, precision=Precision(), zero=zero, shards=64)
        yield _row("ZeRO, figure 1", f"7.5B, stage {zero}, GB", gigabytes, states.total / 1e9, 0.05)
    states = model_states(405_000_000_000, precision=Precision(), zero=1, shards=1024)
    yield _row("12 N / 1024", "405B, Adam's states of a rank, GB", 4.75, states.optimizer / 1e9, 0.005)


def bubbles() -> Iterator[Row]:
    for ranks, microbatches, percent in ((4, 8, 27.3), (4, 32, 8.6), (16, 8, 65.2), (16, 64, 19.0)):
        ratio = bubble_ratio("1f1b", Shape(ranks=ranks, microbatches=microbatches))
        assert ratio is not None
        yield _row("(P - 1) / (M + P - 1)", f"P {ranks}, M {microbatches}, bubble, %", percent, 100 * ratio, 0.05)


ZERO_BUBBLE = (
    ("1.5B", 8, 3, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083),
    ("1.5B", 8, 3, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837),
    ("1.5B", 8, 3, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444),
    ("6.2B", 8, 4, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323, 0.0698),
    ("6.2B", 8, 4, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 0.1045, 0.0559),
    ("6.2B", 8, 4, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 0.0554, 0.0294),
    ("14.6B", 16, 3, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672),
    ("14.6B", 16, 3, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516),
    ("14.6B", 16, 3, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266),
    ("28.3B", 32, 2, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421, 0.0641),
    ("28.3B", 32, 2, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.0490),
    ("28.3B", 32, 2, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594, 0.0257),
)
"""Model, P, stages per rank of 1F1B-I, M; ms of F, I, W, message; bubble rates of 1F1B, 1F1B-I, ZB-H1, ZB-H2."""


def zero_bubble() -> Iterator[Row]:
    """Qi et al. 2023, arXiv:2401.10241, its tables of profiled times and of bubble rates, including transfers.

    1F1B-I's computed rates are up to 0.4 points higher, because its smaller stages have whole transfers between them.
    """
    for name, ranks, chunks, microbatches, *times, one_f_one_b, interleaved, zb, h2 in ZERO_BUBBLE:
        forward, backward_input, backward_weight, transfer = times
        for schedule, stages, rate, within in (
            ("1f1b", 1, one_f_one_b, 0.005),
            ("interleaved", chunks, interleaved, 0.4),
            ("zb-1p", 1, zb, 0.005),
        ):
            each = Times(
                forward=forward / stages,
                backward_input=backward_input / stages,
                backward_weight=backward_weight / stages,
            )
            shape = Shape(ranks=ranks, microbatches=microbatches, chunks=stages)
            played = timetable(orders(schedule, shape), each, transfer=transfer)
            quantity = f"{name} M {microbatches} {schedule}, %"
            # A tick is a microsecond: up to a hundredth of a point if stages are cut.
            yield _row("Zero Bubble, bubble rates", quantity, 100 * rate, 100 * played.idle_ratio, within + 0.001)
        yield from _zb_h2(name, Shape(ranks=ranks, microbatches=microbatches), times, h2)


def _zb_h2(name: str, shape: Shape, times: Sequence[float], rate: float) -> Iterator[Row]:
    """ZB-H2's bubble by formula, because no order of actions is implemented for it."""
    forward, backward_input, backward_weight, transfer = times
    each = Times(forward=forward, backward_input=backward_input, backward_weight=backward_weight)
    ratio = formula_only_ratio("zb-h2", shape, each, transfer=transfer)
    assert ratio is not None
    yield _row("Zero Bubble, bubble rates", f"{name} M {shape.microbatches} zb-h2, %", 100 * rate, 100 * ratio, 0.005)


def wire() -> Iterator[Row]:
    for ranks, factor in ((2, 1), (8, 1.75), (1024, 1.998046875)):
        yield _row("2 (N - 1) / N", f"all-reduce of {ranks}", factor, bus_factor("all_reduce", ranks), 0)


def cadence() -> Iterator[Row]:
    """Daly 2006, figures 3 to 5; BLOOM-176B: 40 s per save, 105.2 s per iteration, one failure per week."""
    for hours, minutes, within in ((24, 117, 0.5), (6, 57, 0.5), (0.25, 9.1, 0.05)):
        failures = Failures(mtbf_seconds=hours * HOUR, save_seconds=300, restart_seconds=600)
        yield _row("Daly 2006", f"a failure every {hours:g} h, minutes", minutes, daly_seconds(failures) / 60, within)
    iterations = young_seconds(Failures(mtbf_seconds=7 * DAY, save_seconds=40)) / 105.2
    yield _row("Young 1974", "BLOOM, iterations between saves", 66, iterations, 0.5)


def _row(source: str, quantity: str, truth: float, computed: float, within: float) -> Row:
    return Row(source=source, quantity=quantity, truth=truth, computed=computed, within=within)


def main() -> int:
    table = Table(title="Published numbers: truth | computed | error")
    for head in ("source", "what", "truth", "computed", "error", "allowed"):
        table.add_column(head, justify="left" if head in ("source", "what") else "right", no_wrap=True)
    computed_rows = list(rows())
    for row in computed_rows:
        numbers = f"{row.truth:g}", f"{row.computed:.4g}", f"{row.error:+.2g}", f"{row.within:.2g}"
        table.add_row(row.source, row.quantity, *numbers, style=None if row.holds else "bold red")
    Console(width=120).print(table)
    missed = sum(not row.holds for row in computed_rows)
    most = max(abs(row.error) / row.within for row in computed_rows if row.within)
    printed = sum(row.printed for row in computed_rows)
    by_hand = len(computed_rows) - printed
    print(
        f"{printed} printed numbers, {by_hand} by hand; off by {most:.1%} of their tolerance at most; {missed} missed"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
