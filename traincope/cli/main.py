"""The `traincope` command: run the subcommand, and turn an error into one sentence and an exit code."""

import argparse
import errno
import sys
from collections.abc import Collection, Mapping, Sequence
from pkgutil import resolve_name
from typing import NamedTuple

import traincope
from traincope.cli.command import Command, add_command
from traincope.cli.screen import drop_output, make_safe
from traincope.errors import TraincopeError


class Listed(NamedTuple):
    """A command in `--help`."""

    place: str
    """Its module in `cli/commands` and its class."""
    help: str
    """One line."""


COMMANDS: Mapping[str, Listed] = {
    "demo": Listed(
        "demo:Demo",
        "train a small GPT on 8 ranks (pipeline 2 x FSDP 2 x tensor 2) on real text, then print where its time went",
    ),
    "run": Listed("run:Run", "run any training command and record it without a change to its code"),
    "train": Listed("train:Train", "train a configuration file on this machine and record it"),
    "launch-file": Listed(
        "launch_file:LaunchFile",
        "write a file for a scheduler that starts a torchrun command on several hosts and records it",
    ),
    "drift": Listed(
        "drift:DriftCommand",
        "train a configuration in fp32, bf16, fp16 and fp8, and report how far each moves away from fp32",
    ),
    "ls": Listed(
        "ls:Ls",
        "list the runs below a directory: state, steps, MFU, verdict; on a wide screen also ranks, start, goodput",
    ),
    "report": Listed("report:Report", "report where the time of a run went, which ranks caused it, and what to do"),
    "view": Listed("view:View", "show runs in the browser: verdict, ledger, and a timeline to zoom"),
    "live": Listed(
        "live:Live",
        "watch a running job in the browser: verdict so far, step time, ledger, faults; needs no other server",
    ),
    "profile": Listed("profile:Profile", "record the next steps of a running job in detail, on all ranks"),
    "hang": Listed("hang:HangCommand", "say which ranks of a run stand still, who waits for whom, and where to look"),
    "explain": Listed(
        "explain:Explain",
        "explain kinds of findings and faults: the meaning, the evidence, the remedy, and how to check it",
    ),
    "diff": Listed(
        "diff:DiffCommand", "compare two runs: is the second slower, which ledger terms changed, what else differs"
    ),
    "sql": Listed(
        "sql:Sql", "ask SQL of runs: steps, ledger, collectives, spans, faults and measured values are views"
    ),
    "mcp": Listed(
        "mcp:Mcp", "let an AI assistant read runs, by the Model Context Protocol over standard input and output"
    ),
    "agent": Listed(
        "agent:AgentCommand",
        "watch a run's ranks on this node: ledger rows, compaction, live numbers (a run starts its agent itself)",
    ),
    "plan": Listed("plan:Plan", "compute a training by formula: FLOPs, memory, communication, pipeline, checkpoints"),
    "preflight": Listed(
        "preflight:Preflight", "measure ranks, links and the configured pipeline before a run; pass or fail each host"
    ),
    "import": Listed(
        "import_:Import",
        "make a run directory from kernel traces, memory snapshots, a table of operations or a list of interruptions",
    ),
    "ship": Listed("ship:Ship", "ship records of this node that its agent could not ship, or copy a run to a URL"),
    "export": Listed(
        "export:Export", "write a run in the format of another tool, or copy it without its names for others to see"
    ),
    "dashboards": Listed("dashboards:Dashboards", "build and push dashboards for Grafana and rules for Prometheus"),
    "doctor": Listed(
        "doctor:Doctor", "list the probes that work here, or worked in a run; for the others the reason and the remedy"
    ),
}
"""Name -> command, in the order of `--help`. A new command is one file and one entry here.

Only the chosen command is imported.
"""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


FULL = "free some space, or give another place"
READ_ONLY = "give a place that you may read and write"
REFUSALS: Mapping[int, str] = {
    errno.EACCES: READ_ONLY,
    errno.EPERM: READ_ONLY,
    errno.EROFS: READ_ONLY,
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: FULL,
}
"""Refusals of the system that every command may meet, and what to do. Any other OSError is a defect."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    make_safe()
    words = sys.argv[1:] if arguments is None else arguments
    called = "traincope"
    try:
        parsed = make_parser(words[:1]).parse_args(words)
        command: Command = parsed.command
        called = f"traincope {command.name}"
        code = command.run(parsed)
        sys.stdout.flush()
    except TraincopeError as error:
        print(f"{called}: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt as stopped:
        print(f"{called}: {str(stopped) or 'interrupted'}", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        drop_output()  # the reader (head, less) closed the pipe
        code = 0
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        print(f"{called}: {_refusal(error)}", file=sys.stderr)
        _flush_what_can_be()
        code = TraincopeError.exit_code
    sys.exit(code)


def _flush_what_can_be() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def _refusal(error: OSError) -> str:
    place = error.filename or "standard output"
    return f"{place}: {error.strerror}; {REFUSALS[error.errno or 0]}"


def load_command(name: str) -> Command:
    """Import the command with this name."""
    command: Command = resolve_name(f"traincope.cli.commands.{COMMANDS[name].place}")()
    return command


def make_parser(chosen: Collection[str]) -> argparse.ArgumentParser:
    """Parser that knows the arguments of the chosen commands. The others are only listed."""
    parser = argparse.ArgumentParser(
        prog="traincope",
        description="Where the time of a distributed training went, which rank caused it, and what to do about it.",
        epilog="example: traincope report traincope_runs/my-job",
    )
    parser.add_argument("--version", action="version", version=f"traincope {traincope.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, listed in COMMANDS.items():
        if name in chosen:
            add_command(subparsers, load_command(name), help_line=listed.help, what="command")
        else:
            subparsers.add_parser(name, help=listed.help)
    return parser


if __name__ == "__main__":
    main()
