"""`traincope preflight`: measure the machines and the configured pipeline before a run, and pass or fail each host."""

import argparse
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from traincope.cli.answers import write_answer
from traincope.cli.launch.training import require_torch
from traincope.cli.preflight.options import add_options, option_words, settings_of
from traincope.cli.preflight.slurm_task import variables_of_task
from traincope.cli.screen import make_console
from traincope.errors import ConfigError, DataError, TraincopeError, UsageError

RANK = "traincope.cli.preflight.rank"
OF_A_RANK = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that torchrun sets for each rank."""


class Preflight:
    name = "preflight"
    example = "traincope preflight examples/demo.toml --steps 20"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_options(parser)
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the answer into FILE")

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure and print. The exit code is 0 if all passed, 1 if not, and 2 for bad input, as in a prolog.

        Under torchrun this process is one of the ranks, and so it is as one of several tasks of srun. Otherwise it
        starts all ranks on this machine.
        """
        settings_of(arguments)
        require_torch()
        if not os.environ.keys() >= OF_A_RANK:
            os.environ.update(variables_of_task(os.environ))
        if os.environ.keys() >= OF_A_RANK:
            from traincope.cli.preflight.rank import answer_as_rank

            answer_as_rank(arguments)
        try:
            return _on_this_machine(arguments)
        except (ConfigError, DataError) as error:
            raise UsageError(str(error)) from error


def _on_this_machine(arguments: argparse.Namespace) -> int:
    from traincope.engine.config.load import load_config
    from traincope.engine.corpus import check_corpus
    from traincope.engine.launch import Launch, launch

    config = load_config(arguments.config, overrides=arguments.overrides)
    check_corpus(config.data, sequence=config.model.sequence)
    with TemporaryDirectory(prefix="traincope-preflight-") as directory:
        result = Path(directory) / "result.json"
        words = (*option_words(arguments), "--width", str(make_console().width), "--result", str(result))
        try:
            launch(Launch(ranks=config.parallel.world_size, module=RANK, arguments=words))
        except TraincopeError:
            if result.exists():  # A rank failed after the measurement.
                _show(result, arguments.output)
            raise
        return 0 if _show(result, arguments.output) else TraincopeError.exit_code


def _show(result: Path, output: Path | None) -> bool:
    """Write the answer's text; return whether all passed."""
    answer = json.loads(result.read_text(encoding="utf-8"))
    write_answer(answer["text"], output)
    return bool(answer["passed"])
