"""`traincope agent`: start the node's agent by hand. A run starts one per node itself."""

import argparse
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from traincope.cli.quantities import quantity
from traincope.cli.screen import make_safe
from traincope.errors import TraincopeError, UsageError
from traincope.live.node.agent import DEFAULT_INTERVAL_SECONDS, SHARE_OF_A_CORE, Agent, Options
from traincope.live.node.job_budget import job_budget
from traincope.live.serve.finishing import finish
from traincope.live.serve.observers import AgentLocation, make_observers, make_peers
from traincope.live.serve.tile_handoff import ship_tiles
from traincope.live.shipping.agent_shipping import begin_shipping
from traincope.live.window import Window
from traincope.record.session.options import DEFAULT_DISK_BUDGET
from traincope.store.job.requesting import last_attempt
from traincope.store.layout import attempt_directory
from traincope.store.lock import job_name, lock_path, remove_lock, take_lock
from traincope.store.places.node_local import recorded_at
from traincope.store.reading import find_run

INTERVAL_VARIABLE = "TRAINCOPE_AGENT_INTERVAL"
SHARE_VARIABLE = "TRAINCOPE_AGENT_SHARE"
MAX_SECONDS = 86_400.0
MAX_KEY_CHARACTERS = 256
NICE = 10
"""Lower priority than the training."""


class AgentCommand:
    name = "agent"
    example = "traincope agent traincope_runs/my-job"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run_directory", type=Path, metavar="RUN", help="run directory that ranks of this node use")
        parser.add_argument("--attempt", type=int, metavar="N", help="launch of the job (default: the last)")
        parser.add_argument(
            "--interval",
            type=_seconds,
            default=os.environ.get(INTERVAL_VARIABLE, str(DEFAULT_INTERVAL_SECONDS)),
            metavar="SECONDS",
            help="minimum seconds between two readings (default: %(default)s)",
        )
        parser.add_argument(
            "--disk-budget",
            type=_bytes,
            default=DEFAULT_DISK_BUDGET,
            metavar="BYTES",
            help="maximum bytes of events per thread of a rank (default: %(default)s)",
        )
        parser.add_argument(
            "--share",
            type=_share,
            default=os.environ.get(SHARE_VARIABLE, str(SHARE_OF_A_CORE)),
            metavar="RATIO",
            help="maximum share of one core; after a long reading the agent pauses longer (default: %(default)s)",
        )
        parser.add_argument("--lock", type=int, help=argparse.SUPPRESS)
        parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
        parser.add_argument("--key", type=int, help=argparse.SUPPRESS)

    def run(self, arguments: argparse.Namespace) -> int:
        run = find_run(recorded_at(arguments.run_directory)).resolve()
        attempt = last_attempt(run) if arguments.attempt is None else arguments.attempt
        job = job_name(run, attempt=attempt)
        lock = arguments.lock if arguments.lock is not None else _lock(job, run)
        try:
            _yield_cores()
            shipping = begin_shipping(run, attempt=attempt, environment=os.environ)
            agent = _agent(arguments, AgentLocation(run=run, attempt=attempt, job=job))
            agent.run()
            print(f"{agent.num_rows:,} ledger rows written to {attempt_directory(run, attempt)}", flush=True)
            named = None if shipping is None else shipping.finish(is_stopping=lambda: agent.stopping)
            place = named or run
            tiles = None if agent.stopping else _finish(place, attempt, disk_budget_bytes=arguments.disk_budget)
            if shipping is not None and tiles is not None:
                shipping.ship_report()
        finally:
            remove_lock(lock_path(job), lock)
        if tiles is not None:
            print(f"tiles for viewers written to {tiles}")
        return 0


def _agent(arguments: argparse.Namespace, node: AgentLocation) -> Agent:
    options = Options(
        run=node.run,
        attempt=node.attempt,
        disk_budget_bytes=arguments.disk_budget,
        expected_ranks=arguments.ranks,
        interval_seconds=arguments.interval,
        share_of_a_core=arguments.share,
        job_budget=job_budget(os.environ),
    )
    peers = make_peers(None if arguments.key is None else _read_key(arguments.key))
    agent = Agent(options, observers=(*make_observers(node, peers=peers), FreezeGarbage()), copies=peers)

    def stop(_number: int, _frame: FrameType | None) -> None:
        agent.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return agent


class FreezeGarbage:
    """Freezes the garbage collector's objects after the first window, when everything is imported."""

    def __init__(self) -> None:
        self._settled = False

    def observe(self, _window: Window) -> None:
        if not self._settled:
            gc.collect()
            gc.freeze()
            self._settled = True

    def close(self) -> None:
        """Do nothing: the objects stay frozen until the process ends."""


def _finish(run: Path, attempt: int, *, disk_budget_bytes: int) -> Path | None:
    """Finish after the training's end, when a signal may end the agent at once. Returns the directory of tiles."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    finish(run, attempt=attempt)
    return ship_tiles(run, attempt=attempt, disk_budget_bytes=disk_budget_bytes)


def _read_key(descriptor: int) -> str:
    """The job's key, from a pipe of the rank that started this agent."""
    with open(descriptor, "rb") as pipe:
        return pipe.read(MAX_KEY_CHARACTERS).decode(errors="replace")


def _lock(job: str, run: Path) -> int:
    try:
        lock = take_lock(lock_path(job))
    except OSError as error:
        raise UsageError(f"cannot lock {lock_path(job)}: {error.strerror}") from error
    if lock is None:
        raise UsageError(f"an agent of this node already watches {run}: it holds {lock_path(job)}")
    return lock


def _yield_cores() -> None:
    """Give way to the training: lower priority, and all cores, not only those of the rank that started the agent."""
    with suppress(OSError):
        os.nice(NICE)
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _seconds(text: str) -> float:
    seconds = quantity(text)
    if not 0 < seconds < MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not an interval; give seconds above 0, e.g. 5")
    return seconds


def _bytes(text: str) -> int:
    number = int(quantity(text))
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a budget; give bytes, e.g. {DEFAULT_DISK_BUDGET}")
    return number


def _share(text: str) -> float:
    share = quantity(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not a share of a core; give a number above 0 and at most 1, e.g. 0.01"
        )
    return share


def main() -> None:
    """Entry point for training processes: this command without the imports of the other commands."""
    make_safe()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    command = AgentCommand()
    parser = argparse.ArgumentParser(prog="traincope agent")
    command.add_arguments(parser)
    try:
        sys.exit(command.run(parser.parse_args()))
    except TraincopeError as error:
        print(f"traincope agent: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
