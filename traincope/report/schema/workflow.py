"""Types of the object that `report` of several runs prints with `--format json`."""

from typing import TypedDict

from traincope.report.schema.document import Document


class WorkflowJob(TypedDict):
    role: str
    run_id: str
    num_ranks: int
    num_steps: int
    """Steps in the shares: the job's own report counts these too."""
    wait_ratio: float | None
    """Share of its step time in which its ranks wait for other jobs; null: it has no step."""
    alone: bool
    """No other of the jobs recorded while it did."""


class JobWait(TypedDict):
    waiting: str
    awaited: str
    ns: int
    """Sum over the waiting job's ranks and steps."""
    ratio: float
    """Share of the waiting job's step time."""
    recorded_ratio: float
    """Share of these waits in which a run of the awaited role recorded."""
    worked_ratio: float | None
    """Share in which it worked; null: it has no record of these waits."""
    waited_ratio: float | None
    """Share in which it waited for other jobs itself."""


class Workflow(TypedDict):
    name: str | None
    jobs: list[WorkflowJob]
    waits: list[JobWait]
    """The largest shares first."""
    reports: list[Document]
    """One per job, in their order."""
