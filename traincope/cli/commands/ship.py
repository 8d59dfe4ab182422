"""`traincope ship`: ship by hand what the agent of this node could not ship."""

import argparse
import os
from pathlib import Path

from traincope.cli.given_runs import add_run, given_run
from traincope.errors import ServerError, UsageError
from traincope.live.shipping.destinations import Destinations, known_destinations, require, run_url
from traincope.live.shipping.limits import ShipSettings
from traincope.live.shipping.selecting import is_over
from traincope.live.shipping.shipper import Shipper
from traincope.record.session.identity import this_host
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import attempt_number
from traincope.store.lock import is_locked, job_name, lock_path
from traincope.store.places.node_local import recorded_at, remove_local
from traincope.store.reading import find_run
from traincope.topology import Host
from traincope.units import count, size


class Ship:
    name = "ship"
    example = "traincope ship traincope_runs/my-job s3://bucket/runs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument(
            "url",
            nargs="?",
            metavar="URL",
            help="URL below which the run gets a folder (default: where its agent shipped it to)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        run = find_run(recorded_at(given_run(arguments.run_directory))).resolve()
        known = known_destinations(run)
        chosen = known if arguments.url is None else Destinations(named=None, url=run_url(arguments.url, run))
        require(chosen, run)
        settings = ShipSettings.read(os.environ)
        attempts = _attempts(run)
        if not attempts:
            raise UsageError(f"{run} has no records of ranks; copy its few files with the store's own tools")
        for attempt in attempts:
            if is_locked(lock_path(job_name(run, attempt=attempt))):
                raise UsageError(f"an agent of this node still watches {run}; wait for its end")
            hosts = _hosts(run, attempt)
            over = {host: is_over(run, host, attempt=attempt) for host in hosts}
            for host in hosts:
                for target in chosen.targets():
                    shipper = Shipper(run, attempt=attempt, host=host, target=target, settings=settings)
                    last = host != this_host() or over[host]
                    try:
                        done = shipper.round(last=last)
                    except OSError as error:
                        raise ServerError(f"{target.place} cannot be written: {error.strerror or error}") from error
                    shipped = f"{count(done.files, 'file')}, {size(done.bytes)}, to {target.place}"
                    print(f"attempt {attempt} of host {host.name}: shipped {shipped}")
            if chosen.named is not None and all(over.values()):  # as of before the rounds: a rank may end after its own
                remove_local(run, attempt=attempt)
        return 0


def _attempts(run: Path) -> list[int]:
    numbers = [attempt_number(path) for path in run.glob("attempt-*")]
    return sorted(number for number in numbers if number is not None)


def _hosts(run: Path, attempt: int) -> list[Host]:
    """All hosts of an attempt: a directory may hold records of several."""
    directories = sorted(run.glob(f"attempt-{attempt:03d}/rank-*"))
    return list(dict.fromkeys(read_rank_info(directory).host for directory in directories))
