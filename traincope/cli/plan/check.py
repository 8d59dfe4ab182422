"""`traincope plan check`: rules that a training plan breaks, with their cost, for CI."""

import argparse
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, print_answer
from traincope.cli.plan.model_shape import MODELS, add_named_model, named_model, require_positive
from traincope.cli.plan.search.site import add_cluster, add_job, site
from traincope.cli.quantities import whole
from traincope.errors import BROKEN_RULE, MissingDependencyError, UsageError
from traincope.lines import Trimmed, indented
from traincope.plan.check.predicting import predicted
from traincope.plan.check.problem import Problem, Rule, Severity, Site
from traincope.plan.check.readers.deepspeed import is_deepspeed, plain_json, read_deepspeed
from traincope.plan.check.readers.megatron import MEGATRON, YAML, is_megatron, is_megatron_yaml, read_megatron
from traincope.plan.check.readers.others import BATCH_OF_TRAINER, OF_OTHERS, other_yaml
from traincope.plan.check.readers.torchtitan import is_torchtitan, python_tables, read_torchtitan
from traincope.plan.check.registry import RULES, check, unjudged
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.job import outcome
from traincope.units import count, money, share

NEVER = "never"


class Broken(TypedDict):
    rule: str
    severity: str
    message: str
    fix: str
    source: str
    """Publication of the rule."""
    lost_ratio: float | None
    """Share of the training's time that the change saves; null if no formula predicts it."""
    lost_mfu: float | None
    """MFU that the training reaches more with the change."""
    lost_money: float | None
    """Price of the lost GPU-hours, in the answer's currency; null also without a price."""


class Unjudged(TypedDict):
    rules: list[str]
    reason: str
    """What the plan does not say, and the option that gives it."""


class Answer(TypedDict):
    plan: str
    framework: str
    gpu: str
    gpus: int
    mfu: float | None
    """Predicted MFU of the plan; null if it leaves its model or layout open, or breaks a rule of severity `error`."""
    step_seconds: float | None
    currency: str | None
    """Currency of all money, as USD; null without a price."""
    num_rules: int
    broken: list[Broken]
    unjudged: list[Unjudged]


class PlanCheck:
    name = "check"
    help = "check a training plan of traincope, torchtitan, DeepSpeed or Megatron-LM against rules, for CI"
    example = "traincope plan check examples/pp_fsdp_tp.toml --gpu h100 --gpus 8"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "plan",
            type=Path,
            metavar="CONFIG",
            help="TOML of `traincope train` or torchtitan, a function of torchtitan's Python (FILE.py:NAME), JSON of "
            "DeepSpeed, or a script or YAML with Megatron-LM's arguments",
        )
        add_named_model(parser, help=f"model of a plan that does not give its shapes: {MODELS}")
        parser.add_argument("--seq", type=whole, metavar="N", help="tokens per sequence of --model")
        parser.add_argument(
            "--vocab", type=whole, metavar="N", help="size of the vocabulary, if the plan's tokenizer decides it"
        )
        add_cluster(parser.add_argument_group("cluster"))
        add_job(parser.add_argument_group("job"))
        parser.add_argument(
            "--fail-on",
            choices=(*(each.value for each in Severity), NEVER),
            default=Severity.WARNING.value,
            help=f"least severe problem that makes the exit code {BROKEN_RULE} (default: warning)",
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the broken rules. The exit code is 0, or BROKEN_RULE if one is as severe as `--fail-on`."""
        require_positive(arguments, "gpus", "tokens", "pue", "gpu_mtbf_hours", "save_seconds", "seq", "vocab")
        shape = None if arguments.model is None else named_model(arguments.model, sequence=arguments.seq)
        plan = read_plan(arguments.plan, shape=shape, gpus=arguments.gpus, vocabulary=arguments.vocab)
        if arguments.vocab is not None and (shape is not None or plan.framework != MEGATRON):
            raise UsageError(
                "--vocab is for Megatron-LM's arguments; a model that --model names has its own vocabulary"
            )
        site = _site(arguments, plan)
        broken = [_broken(rule, problem, site) for rule, problem in check(plan, site)]
        print_answer(_answer(arguments.plan, plan, site, broken), _show, format=arguments.format)
        return BROKEN_RULE if _fails(broken, arguments.fail_on) else 0


def read_plan(path: Path, *, shape: Transformer | None, gpus: int, vocabulary: int | None = None) -> TrainingPlan:
    """Read a plan of any framework. `shape`: the model, if the plan does not give it. `vocabulary`: its size.

    The name of a configuration in a Python file follows a colon.

    Raises UsageError for any other file, and ConfigError for an unusable configuration of `traincope train`.
    """
    path, name = _file_and_name(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark before the text
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; give a readable file in UTF-8") from error
    if path.suffix == ".json":
        return _read_json(path, text, shape=shape, gpus=gpus)
    if path.suffix == ".toml":
        tables = _tables(path, text)
        if is_torchtitan(tables):
            return read_torchtitan(str(path), tables, shape=shape, gpus=gpus)
        return _own_plan(path)
    if path.suffix == ".py" and (configured := python_tables(str(path), text, name=name)) is not None:
        return read_torchtitan(str(path), configured, shape=shape, gpus=gpus)
    if path.suffix in YAML and (what := other_yaml(text)) is not None:
        raise UsageError(f"{path} is {what}, which is not read; {OF_OTHERS}")
    if is_megatron_yaml(text) if path.suffix in YAML else is_megatron(text):
        return read_megatron(str(path), text, shape=shape, gpus=gpus, vocabulary=vocabulary)
    raise UsageError(
        f"{path} is not a plan: give a .toml, a DeepSpeed .json, a script or YAML with Megatron-LM's arguments, or "
        "torchtitan's Python"
    )


def _file_and_name(path: Path) -> tuple[Path, str | None]:
    file, _, name = str(path).rpartition(":")
    return (Path(file), name) if file.endswith(".py") and not path.exists() else (path, None)


def _own_plan(path: Path) -> TrainingPlan:
    try:
        from traincope.cli.plan.own_plan import read_own_plan
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a configuration of traincope train needs {error.name} to be read: pip install 'traincope[train]'"
        ) from error
    return read_own_plan(path)


def _tables(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}; correct that place") from error


def _read_json(path: Path, text: str, *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    try:
        table = json.loads(plain_json(text))
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}; correct that place") from error
    if isinstance(table, dict) and BATCH_OF_TRAINER in table:
        raise UsageError(f"{path} has the arguments of transformers' Trainer, which are not read; {OF_OTHERS}")
    if isinstance(table, dict) and "model_type" in table:
        raise UsageError(f"{path} describes a model, not a training: give a plan, and this file with --model")
    if not isinstance(table, dict) or not is_deepspeed(table):
        raise UsageError(f"{path} is not a configuration of DeepSpeed: it has no train_batch_size or zero_optimization")
    return read_deepspeed(str(path), table, shape=shape, gpus=gpus)


def _site(arguments: argparse.Namespace, plan: TrainingPlan) -> Site:
    """The cluster and the job. The job's tokens are the plan's own if it gives its steps."""
    place = site(arguments)
    cluster, job = place.cluster, place.job(plan.shape)
    if plan.layout is not None and plan.layout.ranks != cluster.gpus:
        raise UsageError(
            f"the plan has {plan.layout.ranks} ranks and --gpus is {cluster.gpus}; give --gpus {plan.layout.ranks}"
        )
    prediction = predicted(plan, machine=cluster.machine())
    if arguments.tokens is None and plan.steps is not None and prediction is not None:
        job = replace(job, tokens=plan.steps * prediction.tokens_per_step)
    return Site(cluster=cluster, job=job, prediction=prediction)


def _broken(rule: Rule, problem: Problem, site: Site) -> Broken:
    lost, prediction = problem.lost_ratio, site.prediction
    known = lost is not None and prediction is not None and 0 <= lost < 1
    return Broken(
        rule=rule.name,
        severity=rule.severity.value,
        message=problem.message,
        fix=problem.fix,
        source=rule.source,
        lost_ratio=lost,
        lost_mfu=prediction.expected_mfu * lost / (1 - lost) if known and prediction and lost is not None else None,
        lost_money=_lost_money(lost, site),
    )


def _lost_money(lost: float | None, site: Site) -> float | None:
    if lost is None or site.prediction is None:
        return None
    whole = outcome(site.prediction, site.job).money
    return None if whole is None else whole * lost


def _answer(path: Path, plan: TrainingPlan, site: Site, broken: list[Broken]) -> Answer:
    is_rejected = any(each["severity"] == Severity.ERROR.value for each in broken)
    fits = site.prediction is not None and site.prediction.fits
    prediction = site.prediction if fits and not is_rejected else None
    return Answer(
        plan=str(path),
        framework=plan.framework,
        gpu=site.cluster.accelerator.spec.name,
        gpus=site.cluster.gpus,
        mfu=None if prediction is None else prediction.expected_mfu,
        step_seconds=None if prediction is None else prediction.expected_seconds,
        currency=None if site.job.price_per_gpu_hour is None else site.job.currency,
        num_rules=len(RULES),
        broken=broken,
        unjudged=[Unjudged(rules=rules, reason=reason) for reason, rules in _by_reason(plan).items()],
    )


def _by_reason(plan: TrainingPlan) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for rule, reason in unjudged(plan):
        reasons.setdefault(reason, []).append(rule.name)
    return reasons


def _fails(broken: list[Broken], least: str) -> bool:
    if least == NEVER:
        return False
    severities = [each.value for each in Severity]
    failing = severities[: severities.index(least) + 1]
    return any(each["severity"] in failing for each in broken)


def _show(answer: Answer, console: Console) -> None:
    mfu = "" if answer["mfu"] is None else f"; predicted MFU {share(answer['mfu'])}"
    head = f"{answer['plan']}, a plan of {answer['framework']}, on {answer['gpus']:,} {answer['gpu']}{mfu}"
    console.print(Trimmed(Text(f"CHECK  {head}", style="bold")), end="")
    for each in answer["broken"]:
        lines = [
            f"{each['severity']} {each['rule']}: {each['message']}",
            each["fix"] + _cost(each, answer["currency"]),
            each["source"],
        ]
        console.print(Trimmed(indented(Text(line) for line in lines)), end="")
    for open_rules in answer["unjudged"]:
        line = Text(f"not judged: {', '.join(open_rules['rules'])}: {open_rules['reason']}")
        console.print(Trimmed(indented([line])), end="")
    num_open = sum(len(each["rules"]) for each in answer["unjudged"])
    not_judged = f", {num_open} not judged" if num_open else ""
    console.print(f"{count(answer['num_rules'], 'rule')}, {len(answer['broken'])} broken{not_judged}", highlight=False)


def _cost(broken: Broken, currency: str | None) -> str:
    if broken["lost_ratio"] is None:
        return ""
    mfu = "" if broken["lost_mfu"] is None else f", {100 * broken['lost_mfu']:.1f} points of MFU"
    price = "" if broken["lost_money"] is None else f", {money(broken['lost_money'], currency)}"
    return f" Saves {share(broken['lost_ratio'])} of the time{mfu}{price}."
