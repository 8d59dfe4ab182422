"""`traincope plan search`: the fastest layouts of a model on a cluster."""

import argparse
from dataclasses import fields, replace
from pathlib import Path

from traincope.cli.answers import print_answer, write_answer
from traincope.cli.plan.model_shape import add_named_model, named_model
from traincope.cli.plan.search.site import add_cluster, add_job
from traincope.cli.plan.search.text import show, show_explained
from traincope.cli.quantities import whole
from traincope.errors import UsageError
from traincope.plan.layout.layout import ZERO_STAGES, Place
from traincope.plan.search.job import outcome
from traincope.plan.search.kernel_rates import read_kernel_rates
from traincope.plan.search.question import Question, find
from traincope.plan.search.question import answer as answer_to
from traincope.plan.search.rates import MeasuredRates, read_preflight
from traincope.plan.search.search import Found
from traincope.plan.search.space import AXES, SEARCHED
from traincope.plan.search.training_file import training_file


class PlanSearch:
    name = "search"
    help = "rank all layouts of a model on a cluster by predicted step time, with memory, cost and goodput"
    example = "traincope plan search --model llama3-70b --seq 8192 --gpu h100 --gpus 512 --batch 1024"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_named_model(parser, required=True)
        parser.add_argument("--seq", type=whole, metavar="N", help="tokens per sequence (default: as the model states)")
        parser.add_argument("--batch", type=whole, required=True, metavar="N", help="sequences per step, over all GPUs")
        add_cluster(parser.add_argument_group("cluster"))
        add_job(parser.add_argument_group("job"))
        self._add_layout(parser.add_argument_group("layout", "search only layouts with these sizes"))
        parser.add_argument(
            "--like",
            metavar="RUN",
            help="take the rates that this run, or the JSON of `traincope preflight`, measured",
        )
        parser.add_argument(
            "--rates",
            metavar="FILE",
            help="take the kernels' times that `traincope doctor --measure-peak --rates FILE` wrote on such a GPU",
        )
        parser.add_argument(
            "--explain", action="store_true", help="also list the time of each operator of the fastest layout"
        )
        parser.add_argument("--top", type=whole, default=10, metavar="N", help="layouts to list (default: 10)")
        parser.add_argument("--emit", type=Path, metavar="FILE", help="write the fastest layout for `traincope train`")
        parser.add_argument(
            "--format", choices=("text", "json", "html"), default="text", help="output format (default: text)"
        )
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file of the page (default: screen)")

    def _add_layout(self, layout: argparse._ArgumentGroup) -> None:
        for axis in AXES:
            layout.add_argument(f"--{axis}", type=whole, metavar="N")
        layout.add_argument("--zero", type=whole, choices=ZERO_STAGES)
        layout.add_argument("--schedule", choices=(*SEARCHED, "interleaved"))
        layout.add_argument("--micro-batch", type=whole, metavar="N", help="sequences per microbatch")
        layout.add_argument(
            "--quantized", action="store_true", help="also layouts with ZeRO++'s int8 weights and gradients"
        )
        layout.add_argument(
            "--offload",
            choices=(Place.CPU.value, Place.NVME.value),
            help="only layouts with optimizer state, or also weights, there (default: if nothing fits without it)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        question = Question(**{each.name: getattr(arguments, each.name) for each in fields(Question)})
        named_model(question.model, sequence=question.seq)
        rates = _measured(question)
        found = find(question, engine=arguments.emit is not None, rates=rates)
        answer = answer_to(question, found, rates=rates)
        if arguments.emit is not None:
            write_answer(_emitted(question, found), arguments.emit)
        if arguments.format == "html":
            from traincope.cli.plan.search.page import page  # as other HTML, it needs the extra `view`

            write_answer(page(answer), arguments.output)
        else:
            print_answer(answer, show_explained if arguments.explain else show, format=arguments.format)
        return 0


def _measured(question: Question) -> MeasuredRates | None:
    """Links of a run or preflight, and kernels by shape. Raises UsageError, or RunDirectoryError."""
    rates = None if question.like is None else _rates(Path(question.like))
    if question.rates is None:
        return rates
    kernels = read_kernel_rates(Path(question.rates))
    if rates is None:
        return MeasuredRates(source=question.rates, kernels=kernels)
    return replace(rates, source=f"{rates.source}, {question.rates}", kernels=kernels, holds_pointwise=False)


def _rates(path: Path) -> MeasuredRates:
    """Rates of a run directory, or of the JSON of a preflight. Raises UsageError, or RunDirectoryError."""
    if path.is_file():
        return read_preflight(path)
    from traincope.analysis import analyze, measured_rates
    from traincope.timeline import open_run

    return measured_rates(analyze(open_run(path)), source=str(path))


def _emitted(question: Question, found: Found) -> str:
    if not found.ranked:
        raise UsageError("--emit: no layout fits, so there is nothing to write; leave --emit out to see why")
    best, shape = found.ranked[0], question.shape
    job = question.job(shape)
    interval = outcome(best.prediction, job).checkpoint_seconds
    every = max(1, round(interval / best.prediction.expected_seconds))
    return training_file(shape, layout=best.layout, recompute=best.recompute, tokens=job.tokens, every=every)
