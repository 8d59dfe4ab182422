"""One rank of a training, which torchrun starts.

    python -m traincope.cli.launch.worker CONFIG.toml [--set a.b=value] [--out RUN] [--resume]

It joins the process group, trains under the recorder, and ends without destructors. Rank 0 writes one JSON object per
step to `--progress`, for a progress bar, or to standard output.
"""

import argparse
import json
import os
import signal
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn, TextIO

import torch

import traincope
from traincope.cli.launch.worker_exit import end_with_starter, exit_now, exit_on_error, exit_worker
from traincope.cli.screen import make_safe
from traincope.engine.checkpoint.checkpoints import Checkpoints
from traincope.engine.checkpoint.places.claim import Claimant, TakenOver
from traincope.engine.checkpoint.places.directory import checkpoint_directory
from traincope.engine.checkpoint.places.uploads import Upload
from traincope.engine.config import Config
from traincope.engine.config.load import load_config
from traincope.engine.model.shape import max_amounts, transformer
from traincope.engine.precision.formats import FORMATS
from traincope.engine.precision.scaled_products import has_fp8_products
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.engine.ranks.peak import matmul_peak
from traincope.engine.trainer import StepResult, Trainer
from traincope.errors import CheckpointError, TraincopeError, UsageError
from traincope.events import CHECKPOINT_NOT_UPLOADED, CHECKPOINT_UPLOADED, RESUMED, ROLLBACK, SKIPPED_STEP
from traincope.plan.model.rates import model_rates
from traincope.private_files import private
from traincope.store.job.process import Process
from traincope.units import count


def main() -> None:
    """Parse the command line, train, and end the process."""
    make_safe()
    arguments = _parser().parse_args()
    exit_on_error()
    end_with_starter(signal.SIGKILL)
    try:
        config = load_config(arguments.config, overrides=arguments.overrides)
        environment = WorkerEnvironment.read()
        if arguments.elastic:
            config = config.on_ranks(environment.world_size)
        config.parallel.check_world_size(environment.world_size)
        with ExitStack() as files:
            progress = _open_progress(arguments.progress, files) if environment.rank == 0 else None
            _train(config, environment=environment, out=arguments.out, resume=arguments.resume, progress=progress)
    except CheckpointError as error:
        _end(environment, error)
    except TraincopeError as error:
        print(f"error: {error}", file=sys.stderr)
        exit_now(error.exit_code)
    exit_worker(0)


def _end(environment: WorkerEnvironment, error: CheckpointError) -> NoReturn:
    """End a rank. One rank of a host prints an error that all have. That it was taken over, a rank may find alone."""
    if environment.local_rank == 0 or isinstance(error, TakenOver):
        print(f"error: {error}", file=sys.stderr)
    exit_now(error.exit_code)


def _train(
    config: Config, *, environment: WorkerEnvironment, out: Path | None, resume: bool, progress: TextIO | None
) -> None:
    claimant = _claimant(config, out=out)
    device = join(environment)
    peak = _measured_peak(config, device)
    with traincope.run(out=out) as run:
        run.describe(**settings(config), **peak)
        trainer = Trainer(config, device=device)
        checkpoints = None
        if config.checkpoint is not None:
            checkpoints = Checkpoints(
                trainer,
                config.checkpoint,
                directory=checkpoint_directory(config.checkpoint, run=out),
                claimant=claimant,
                on_loss=partial(_end, environment),
                interruptions=environment.earlier_attempts + environment.attempt,
                report=_record_upload,
            )
            if checkpoints.begin(resume=resume):
                traincope.event(RESUMED, step=trainer.done)
        with nullcontext() if checkpoints is None else checkpoints.unless_taken_over():
            _train_steps(run, trainer, checkpoints, attempt=environment.attempt, progress=progress)


def _claimant(config: Config, *, out: Path | None) -> Claimant | None:
    """Look at the folder of the checkpoints. None if the configuration asks for no checkpoints."""
    if config.checkpoint is None:
        return None
    return Claimant.read(checkpoint_directory(config.checkpoint, run=out), agent=Process.of(os.getppid()))


def _train_steps(
    run: traincope.Run, trainer: Trainer, checkpoints: Checkpoints | None, *, attempt: int, progress: TextIO | None
) -> None:
    config, resumed_after = trainer.config, trainer.done
    for result in trainer.steps():
        run.log(**_logged(result), **document_values(config, result))
        if result.skipped is not None:
            traincope.event(SKIPPED_STEP, why=result.skipped)
        run.log(**expert_values(trainer, config, result, resumed_after=resumed_after))
        halted = None
        if checkpoints is not None and result.rolls_back:
            halted = _roll_back(checkpoints, trainer, result)
            resumed_after = trainer.done
        elif checkpoints is not None:
            _save_if_due(checkpoints)
        run.step()
        _report(progress, attempt=attempt, **asdict(result))
        every, held_out_loss = config.train.evaluate_every, None
        if every is not None and result.step % every == 0 and not result.rolls_back:
            held_out_loss = trainer.evaluate()
            run.log(held_out_loss=held_out_loss)
            _report(progress, attempt=attempt, step=result.step, held_out_loss=held_out_loss)
        if config.stability.halts(loss=result.loss, grad_norm=result.grad_norm, held_out_loss=held_out_loss):
            halted = config.stability.halt
        if halted is not None:
            traincope.event("halted", condition=halted, step=result.step)
            if progress is not None:
                print(f"halted after step {result.step}: {halted}", file=sys.stderr)
            break
    if checkpoints is not None:
        checkpoints.finish()


def _roll_back(checkpoints: Checkpoints, trainer: Trainer, result: StepResult) -> str | None:
    """Go back to the last checkpoint. Returns the reason to halt instead if too many rollbacks did not help."""
    limit = trainer.config.stability.max_rollbacks
    if checkpoints.rollbacks >= limit:
        return f"{result.skipped}, after {count(limit, 'rollback')} without a new checkpoint (stability.max_rollbacks)"
    loaded = checkpoints.roll_back()
    if trainer.config.experts is not None:
        trainer.expert_loads()  # those of steps that are undone
    details = {"checkpoint": loaded.name, "passed_over": trainer.passed_over}
    traincope.event(ROLLBACK, step=trainer.done, why=result.skipped, **details)
    return None


def _record_upload(upload: Upload) -> None:
    if upload.error is None:
        traincope.event(CHECKPOINT_UPLOADED, step=upload.step, seconds=upload.seconds, bytes=upload.bytes)
    else:
        traincope.event(CHECKPOINT_NOT_UPLOADED, step=upload.step, seconds=upload.seconds, error=upload.error)


def _save_if_due(checkpoints: Checkpoints) -> None:
    """Save, and record each choice of another interval."""
    before = checkpoints.interval
    checkpoints.save_if_due()
    chosen = checkpoints.interval
    if chosen is not None and chosen is not before:
        traincope.event("checkpoint interval", **asdict(chosen))
        traincope.log(checkpoint_every=chosen.steps)


def settings(config: Config) -> dict[str, object]:
    """Settings for the report: the configuration, tokens per step and rates of model FLOPs."""
    return {"tokens_per_step": config.tokens_per_step, **_model_flops(config), **asdict(config)}


def _model_flops(config: Config) -> dict[str, object]:
    """Rates from which the report computes model FLOPs per step.

    Lengths of documents vary by step, and the tokens that a capacity drops are known later. Both are logged instead.
    """
    rates, step_amounts = model_rates(transformer(config)), max_amounts(config)
    drops = config.experts is not None and config.experts.capacity_factor is not None
    return {
        "flops_per_token": rates.token,
        "flops_per_squared_length": rates.squared_length,
        "flops_per_routed_token": rates.routed_token,
        "squared_lengths_per_step": None if config.data.end_of_document is not None else step_amounts.squared_lengths,
        "routed_tokens_per_step": None if drops else step_amounts.routed_tokens,
        "flops_dtype": str(_product_types(config)[0]).removeprefix("torch."),
    }


def _measured_peak(config: Config, device: torch.device) -> dict[str, object]:
    """The measured peak of a CPU, before training and recording begin. A GPU's peak comes from its data sheet."""
    if device.type != "cpu":
        return {}
    dtypes = {torch.float32, *_product_types(config)}
    peaks = {str(dtype).removeprefix("torch."): matmul_peak(dtype, device=device) for dtype in dtypes}
    return {"peak_flops": peaks, "peak_source": "measured, every rank multiplying at once"}


def _product_types(config: Config) -> tuple[torch.dtype, ...]:
    """Types in which products are multiplied, the one of most FLOPs first."""
    number_format = FORMATS[config.train.precision]
    if number_format.operands is None:
        return (number_format.compute,)
    emulated = number_format.block is not None or config.experts is not None
    fp8 = not emulated and torch.cuda.is_available() and has_fp8_products(torch.device("cuda"))
    return number_format.operands if fp8 else torch.float32, number_format.compute


def _logged(result: StepResult) -> dict[str, float]:
    values = {"loss": result.loss, "grad_norm": result.grad_norm}
    if result.loss is not None:
        values["loss_scale"] = result.loss_scale
    return {name: value for name, value in values.items() if value is not None}


def document_values(config: Config, result: StepResult) -> dict[str, float]:
    """This rank's part of the documents' squared lengths, which determine the FLOPs of attention."""
    if config.data.end_of_document is None:
        return {}
    of_a_slice = config.parallel.world_size // config.parallel.replicas
    return {"step_squared_lengths": result.squared_lengths / of_a_slice}


def expert_values(trainer: Trainer, config: Config, result: StepResult, *, resumed_after: int = 0) -> dict[str, float]:
    """Rows of this rank's experts by layer and expert, padding rows, and dropped tokens.

    Means over the steps since the last call. Empty if a step of these came before the training was resumed.
    """
    every = config.train.log_every
    if config.experts is None or result.step % every:
        return {}
    loads = trainer.expert_loads()
    if result.step - every < resumed_after:
        return {}
    tokens = {f"expert_tokens[{load.layer}.{expert}]": rows for load in loads for expert, rows in load.tokens.items()}
    values = tokens | {
        "expert_padding": sum(load.padding for load in loads),
        "expert_dropped": sum(load.dropped for load in loads),
    }
    return {name: value / every for name, value in values.items()}


def _report(progress: TextIO | None, **values: object) -> None:
    if progress is not None:
        print(json.dumps(values), file=progress, flush=True)


def _open_progress(path: Path | None, files: ExitStack) -> TextIO:
    """Open the progress for appending: a restarted training continues in the same file with the next attempt."""
    if path is None:
        return sys.stdout
    try:
        return files.enter_context(open(path, "a", encoding="utf-8", opener=private))
    except OSError as error:
        raise UsageError(f"cannot write the progress to {path}: {error.strerror}; give another --progress") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m traincope.cli.launch.worker",
        description="One rank of a training; started by torchrun.",
        epilog="example: torchrun --nproc-per-node 4 -m traincope.cli.launch.worker examples/demo.toml --out runs/demo",
    )
    parser.add_argument("config", help="configuration file (TOML)")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE", help="override one value"
    )
    parser.add_argument("--out", type=Path, default=None, metavar="RUN", help="run directory to record into")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    parser.add_argument(
        "--elastic", action="store_true", help="train with the ranks that there are: the data-parallel axis adapts"
    )
    parser.add_argument(
        "--progress",
        type=Path,
        default=None,
        metavar="FILE",
        help="append one JSON line per step to FILE (default: standard output)",
    )
    return parser


if __name__ == "__main__":
    main()
