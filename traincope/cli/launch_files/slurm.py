"""A batch script for Slurm's `sbatch`.

Partition, account and time limit are options of `sbatch`, which take precedence over those in a file.
"""

from collections.abc import Iterator
from shlex import quote

from traincope.cli.launch_files.job import LaunchJob
from traincope.cli.launch_files.script import setup, start
from traincope.errors import HangError


def slurm(job: LaunchJob) -> str:
    return "\n".join([*_directives(job), *_script(job)]) + "\n"


def _directives(job: LaunchJob) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"#SBATCH --job-name={job.name}"
    yield f"#SBATCH --nodes={job.hosts}"
    yield "#SBATCH --ntasks-per-node=1"
    yield f"#SBATCH --gpus-per-node={job.gpus_per_node}"
    yield "#SBATCH --exclusive"
    yield "#SBATCH --mem=0"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue" if job.max_restarts else "#SBATCH --no-requeue"


def _script(job: LaunchJob) -> Iterator[str]:
    """Yield the batch script.

    A host that is lost or ends early must not end the others: a spare may take its place. So must a hang, which each
    host ends by itself.
    """
    yield "set -eu"
    yield 'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield "export host"
    yield from setup(job, peer_key=job.peer_key, metrics_access=job.metrics_access)
    yield "node() {"
    yield "    first=$((SLURM_NODEID == 0))"
    yield from (f"    {line}" for line in start(job, config=quote(str(job.config))))
    yield "}"
    yield "export -f node"
    yield "code=0"
    yield "srun --kill-on-bad-exit=0 --cpu-bind=none bash -c node || code=$?"
    if job.restarts_after_hang:
        yield f"# {HangError.exit_code}: the job hung and was ended."
        restarted = f'"${{SLURM_RESTART_COUNT:-0}}" -lt {job.restarts_after_hang}'
        yield f'if [ "$code" -eq {HangError.exit_code} ] && [ {restarted} ]; then'
        yield '    scontrol requeue "$SLURM_JOB_ID"'
        yield "fi"
    yield 'exit "$code"'
