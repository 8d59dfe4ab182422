"""The `traincope` command: run the subcommand, and turn an error into one sentence and an exit code."""

import argparse
import errno
import sys
from collections.abc import Iterable, Mapping, Sequence
from pkgutil import resolve_name

import traincope
from traincope.cli.command import Command, add_commands
from traincope.cli.screen import drop_output, make_safe
from traincope.errors import TraincopeError

COMMANDS: Mapping[str, str] = {
    "demo": "demo:Demo",
    "run": "run:Run",
    "train": "train:Train",
    "launch-file": "launch_file:LaunchFile",
    "drift": "drift:DriftCommand",
    "ls": "ls:Ls",
    "report": "report:Report",
    "view": "view:View",
    "live": "live:Live",
    "profile": "profile:Profile",
    "hang": "hang:HangCommand",
    "explain": "explain:Explain",
    "diff": "diff:DiffCommand",
    "sql": "sql:Sql",
    "mcp": "mcp:Mcp",
    "agent": "agent:AgentCommand",
    "plan": "plan:Plan",
    "preflight": "preflight:Preflight",
    "import": "import_:Import",
    "ship": "ship:Ship",
    "export": "export:Export",
    "dashboards": "dashboards:Dashboards",
    "doctor": "doctor:Doctor",
}
"""Name of each command -> its module in `cli/commands` and its class, in the order of `--help`.

A new command is one file and one entry here. Only the chosen command is imported: importing all takes half a second.
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
        parsed = make_parser(words).parse_args(words)
        command: Command = parsed.command
        called = f"traincope {command.name}"
        code = command.run(parsed)
        sys.stdout.flush()
    except TraincopeError as error:
        print(f"{called}: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print(f"{called}: interrupted", file=sys.stderr)
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


def load_commands(names: Iterable[str] = COMMANDS) -> tuple[Command, ...]:
    """Import the commands with these names."""
    return tuple(resolve_name(f"traincope.cli.commands.{COMMANDS[name]}")() for name in names)


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Parser of all commands, or of one if `words` begin with its name."""
    parser = argparse.ArgumentParser(
        prog="traincope",
        description="Where the time of a distributed training went, which rank caused it, and what to do about it.",
        epilog="example: traincope report traincope_runs/my-job",
    )
    parser.add_argument("--version", action="version", version=f"traincope {traincope.__version__}")
    add_commands(parser, load_commands(words[:1] if words and words[0] in COMMANDS else COMMANDS), what="command")
    return parser


if __name__ == "__main__":
    main()
