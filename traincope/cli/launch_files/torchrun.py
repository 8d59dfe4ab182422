"""A shell script that a person starts on each host."""

from collections.abc import Iterator
from shlex import quote

from traincope.cli.launch_files.job import LaunchJob
from traincope.cli.launch_files.script import setup, start


def torchrun(job: LaunchJob) -> str:
    """Return the script. More than one host needs MASTER_ADDR and NODE_RANK in the environment."""
    return "\n".join(["#!/usr/bin/env bash", *_lines(job)]) + "\n"


def _lines(job: LaunchJob) -> Iterator[str]:
    if job.hosts > 1:
        yield f"# Start this on {job.hosts} hosts: MASTER_ADDR=FIRST_HOST NODE_RANK=0 bash FILE, then 1, 2, ..."
        yield "set -eu"
        yield 'host="${MASTER_ADDR:?is the name of the first host}"'
        yield "first=$((${NODE_RANK:?is 0 on the first host, then 1, 2, ...} == 0))"
    else:
        yield "set -eu"
        yield "host=localhost"
        yield "first=1"
    yield from setup(job, peer_key=job.peer_key, metrics_access=job.metrics_access)
    yield from start(job, config=quote(str(job.config)))
