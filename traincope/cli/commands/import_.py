"""`traincope import`: make a run directory from kernel traces, memory snapshots, operations, or a logbook."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from traincope.cli.plan.model_shape import require_positive
from traincope.cli.quantities import whole
from traincope.cli.screen import make_console
from traincope.cli.signals import interrupted_by_signals
from traincope.errors import LEFT_OUT, UsageError
from traincope.ingest import (
    TABLE_SUFFIXES,
    Given,
    find_snapshots,
    find_traces,
    holds_dumps,
    holds_traces,
    import_logbook,
    import_snapshots,
    import_table,
    import_traces,
)
from traincope.ingest.tables.importing import ImportedTable
from traincope.plan.model.rates import model_rates, whole_sequences
from traincope.plan.model.sources import PRESETS, read_model
from traincope.plan.search.clusters import ACCELERATORS, device_name
from traincope.private_files import restrict_process
from traincope.store.logbook import Logbook, is_logbook
from traincope.units import count

FORMATS = ("bfloat16", "float16", "tf32", "float32", "float8")
"""Number formats of the data sheets."""


class Import:
    name = "import"
    example = "traincope import traces/ -o traincope_runs/imported"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "traces",
            type=Path,
            nargs="+",
            metavar="TRACE",
            help="trace of a rank, plain or gzip, or a folder of traces; or a snapshot of torch's allocator; or one "
            "table of operations, with the columns dp_rank, stage, rank, step, optype, start, duration (seconds), "
            "microbatch and chunk; or one list of runs and interruptions (docs/understand/goodput.md)",
        )
        parser.add_argument(
            "--axes",
            type=_axes,
            default={},
            metavar="GROUP=AXIS[,...]",
            help="mesh axes of process groups, by the groups' names or descriptions",
        )
        parser.add_argument(
            "--step-marker",
            metavar="NAME",
            help="range that marks each step, if the profiler's step() was not called",
        )
        parser.add_argument(
            "--gpu",
            metavar="NAME",
            help=f"the GPUs' name, if the traces lack it: as torch prints it, or {', '.join(ACCELERATORS)}",
        )
        parser.add_argument(
            "--model",
            metavar="MODEL",
            help=f"model for the MFU: a config.json of transformers, a .toml file of shapes, or {', '.join(PRESETS)}",
        )
        parser.add_argument("--tokens-per-step", type=whole, metavar="N", help="tokens of a step, over all ranks")
        parser.add_argument("--seq", type=whole, metavar="N", help="tokens per sequence")
        parser.add_argument(
            "--dtype", choices=FORMATS, help="number format of the products, if the traces contain no shapes"
        )
        parser.add_argument("-o", "--output", type=Path, metavar="RUN", required=True, help="run directory to create")

    def run(self, arguments: argparse.Namespace) -> int:
        restrict_process()
        with interrupted_by_signals():
            return self._run(arguments)

    def _run(self, arguments: argparse.Namespace) -> int:
        given = Given(
            axes=arguments.axes,
            step_marker=arguments.step_marker,
            gpu=None if arguments.gpu is None else device_name(arguments.gpu),
            described=_described(arguments),
        )
        tables = [path for path in arguments.traces if path.suffix in TABLE_SUFFIXES]
        packed = next((path for path in arguments.traces if path.name.endswith(".csv.gz")), None)
        if packed is not None:
            raise UsageError(f"{packed} is a packed table; unpack it first: gunzip --keep {packed}")
        if tables:
            if len(arguments.traces) > 1:
                raise UsageError(f"{tables[0]} is a table of a whole job; import it alone")
            if given.axes or given.step_marker is not None:
                raise UsageError("--axes and --step-marker are for traces: a table names its steps and groups itself")
            if is_logbook(tables[0]):
                if given.gpu is not None or given.described:
                    raise UsageError(f"{tables[0]} lists interruptions: it has no steps that a model or GPU belongs to")
                _describe_logbook(tables[0], import_logbook(tables[0], arguments.output))
                print(f"see the result:  traincope report {arguments.output}")
                return 0
            _describe(tables[0], import_table(tables[0], arguments.output, given=given))
            print(f"see the result:  traincope report {arguments.output}")
            return 0
        left_out: list[str] = []
        with_traces = [path for path in arguments.traces if path.is_dir() and holds_traces(path)]
        others = [path for path in arguments.traces if path not in with_traces]
        snapshots = [path for path in find_snapshots(others) if not holds_dumps(path)]
        dumps = [path for path in others if path.exists() and holds_dumps(path)]
        if dumps and (not snapshots or any(path.is_file() for path in dumps)):
            raise UsageError(
                f"{dumps[0]} is of torch's flight recorder; see who waits for whom: traincope hang {dumps[0]}"
            )
        if snapshots:
            if with_traces or any(path not in snapshots and holds_traces(path) for path in others):
                raise UsageError(f"{snapshots[0]} is a snapshot of memory; import traces and snapshots separately")
            files = find_snapshots(others)
            for each in import_snapshots(files, arguments.output, given=given, on_left_out=left_out.append):
                print(f"{each.source}: rank {each.rank} ({each.rule}), {count(len(each.snapshot.devices), 'GPU')}")
            return _ended(arguments.output, left_out)
        for path in find_snapshots(with_traces):
            left_out.append(
                f"{path} is a snapshot of memory or another pickle, and this an import of traces; import it alone"
            )
        paths = find_traces(arguments.traces)
        console = make_console(stderr=True)
        columns = (TextColumn("reading traces"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=len(paths))
            imported = import_traces(
                paths,
                arguments.output,
                given=given,
                processes=2,
                on_read=lambda share: progress.advance(task, share),
                on_left_out=left_out.append,
            )
        for trace in imported:
            events = f"{trace.num_kept:,} of {trace.num_read:,} events kept"
            print(f"{trace.source}: rank {trace.rank} ({trace.rule}), {events}")
            if trace.num_untimed:
                print(f"  left out: {count(trace.num_untimed, 'event')} without a valid time")
            if trace.num_twice:
                print(f"  counted once: {count(trace.num_twice, 'event')} that the file has twice")
            if trace.num_negative:
                print(f"  counted as 0 ns: {count(trace.num_negative, 'event')} with a negative duration")
            if trace.lost is not None:
                print(f"  incomplete: {trace.lost}")
        return _ended(arguments.output, left_out)


def _ended(output: Path, left_out: Sequence[str]) -> int:
    """Print the end of the summary, and the sentence of each file that is not imported. Return the exit code."""
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    if left_out:
        print(f"left out: {count(len(left_out), 'file')}, so the exit code is {LEFT_OUT}")
    print(f"see the result:  traincope report {output}")
    return LEFT_OUT if left_out else 0


def _describe(path: Path, table: ImportedTable) -> None:
    """Print what was imported, and what was not."""
    workers = table.num_replicas * table.num_stages
    print(
        f"{path}: {table.num_operations:,} operations of {workers} workers "
        f"({table.num_replicas} data-parallel ranks x {table.num_stages} stages) in {count(table.num_steps, 'step')}"
    )
    if table.laid_out:
        print("  the table counts time from the start of each step, so the steps are shown one after the other")
    for name, rows in table.unknown.items():
        print(f"  unknown type {name!r}: {count(rows, 'operation')}, shown as spans and in no other result")
    if table.idle_messages:
        print(f"  dropped: {table.idle_messages:,} sends and receives at the ends of the pipeline, which never ran")
    if table.left_out:
        step, why = next(iter(table.left_out.items()))
        lacking = "step that is not whole: " if len(table.left_out) == 1 else "steps that are not whole, the first is "
        print(f"  left out: {len(table.left_out)} {lacking}step {step}, {why}")


def _describe_logbook(path: Path, book: Logbook) -> None:
    interruptions = count(sum(each.count for each in book.interruptions), "interruption")
    print(f"{path}: {count(len(book.runs), 'run')}, {interruptions}, {count(len(book.progress), 'known step')}")
    if book.notes:
        print(f"  {count(len(book.notes), 'row')} of kind note: in no number")


def _described(arguments: argparse.Namespace) -> dict[str, float | str]:
    """Rates of the model and amounts of a step, under the names that `run.describe()` gives them."""
    require_positive(arguments, "tokens_per_step", "seq")
    described: dict[str, float | str] = {} if arguments.dtype is None else {"flops_dtype": arguments.dtype}
    tokens = arguments.tokens_per_step
    if tokens is not None:
        described["tokens_per_step"] = tokens
    if arguments.model is None:
        return described
    if tokens is None:
        raise UsageError("--model needs the number of tokens; give --tokens-per-step")
    shape = read_model(arguments.model, sequence=arguments.seq)
    rates, amounts = model_rates(shape), whole_sequences(shape, tokens=tokens)
    return described | {
        "flops_per_token": rates.token,
        "flops_per_squared_length": rates.squared_length,
        "flops_per_routed_token": rates.routed_token,
        "squared_lengths_per_step": amounts.squared_lengths,
        "routed_tokens_per_step": amounts.routed_tokens,
    }


def _axes(text: str) -> dict[str, str]:
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    if not all(group and axis for group, _, axis in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not GROUP=AXIS[,...], for example 3=tp,mesh_fsdp=fsdp")
    return {group: axis for group, _, axis in pairs}
