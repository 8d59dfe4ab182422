"""The injected bottlenecks and healthy loops, with their truths. Each truth was committed before its first run."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evaluation.score.reports.truths import HEALTHY, Truth

PROGRAMS = Path(__file__).with_name("programs")
TRUTHS = Path(__file__).with_name("truths.toml")
REPLICA = "replica-"
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One loop: its launches, and what a report of them must say."""

    truth: Truth
    jobs: tuple[str, ...]
    """Role of each launch; one empty name for a job of its own."""
    environment: dict[str, str] = field(default_factory=dict)
    of: str = ""
    """Role whose own report is judged; empty: the only job's, or what is said about all jobs."""
    alone: bool = False
    """Only the judged job's records are read."""

    @property
    def name(self) -> str:
        return self.truth.name

    @property
    def healthy(self) -> bool:
        return self.truth.item == HEALTHY

    def environment_of(self, job: str) -> dict[str, str]:
        replicas = [each for each in self.jobs if each.startswith(REPLICA)]
        numbers = {"REPLICA": job.removeprefix(REPLICA), "REPLICAS": str(len(replicas))} if job in replicas else {}
        role = {"ROLE": job, "TRAINCOPE_ROLE": job, "TRAINCOPE_WORKFLOW": self.name} if job else {}
        return self.environment | numbers | role


def cases() -> Iterator[Case]:
    """All cases, in the order of the file."""
    for name, fields in tomllib.loads(TRUTHS.read_text()).items():
        jobs = tuple(fields.pop("jobs", [""]))
        environment = {"FAULT": json.dumps(fields.pop("fault", {}))} | fields.pop("environment", {})
        of, alone, healthy = fields.pop("of", ""), fields.pop("alone", False), fields.pop("healthy", False)
        truth = Truth(
            **{
                **fields,
                "name": name,
                "program": PROGRAMS / _program(jobs),
                "nproc": RANKS,
                "ranks": tuple(fields["ranks"]),
                "item": HEALTHY if healthy else "rl",
            }
        )
        yield Case(truth=truth, jobs=jobs, environment=environment, of=of, alone=alone)


def _program(jobs: tuple[str, ...]) -> str:
    if not jobs[0]:
        return "one_job.py"
    return "replica.py" if jobs[0].startswith(REPLICA) else "roles.py"
