"""Result of the proof: comparisons with limits, and what they leave open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope.analysis.ledger.sampling import MeasuredOverhead
from traincope.doctor.gpu_proof.traced_marks import Difference

LIMIT_RATIO = 0.02
"""Largest difference between ledger and trace, as a share of the step."""
OVERHEAD_LIMIT_RATIO = 0.01
"""The overhead of detail fails if its whole interval is above this share of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason why something is not proved."""

    reason: str
    """Holds no name of a host, a user or a path."""
    detail: str | None = None
    """Text for the screen only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Collectives of the compared steps, over all ranks."""

    recorded: int
    traced: int
    """Calls in the traces."""
    nccl_kernels: int
    """Kernels of NCCL in the traces."""
    equal: bool
    """Every step of every rank has the same number in both, and at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProof:
    """Comparison of one training."""

    name: str
    by_marks: tuple[Difference, ...] = ()
    """Ledger against marks computed from the trace."""
    by_import: tuple[Difference, ...] = ()
    """Ledger against that of the imported trace, where both define a part alike."""
    collectives: Collectives | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of the proof."""

    training: str
    name: str
    passed: bool
    difference: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All comparisons of one machine."""

    gpus: tuple[str, ...]
    """Model of each rank's device."""
    on_gpu: bool
    driver: str | None
    versions: Mapping[str, str]
    trainings: tuple[TrainingProof, ...]
    overhead: MeasuredOverhead | None
    """Lengthening of a step by its detail; None: too few windows."""
    windows: int

    @property
    def ranks(self) -> int:
        return len(self.gpus)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Rows that pass or fail. What could not be measured has not passed."""
        return tuple(check for training in self.trainings for check in _checks(training, ranks=self.ranks))

    @property
    def overhead_passed(self) -> bool:
        return self.overhead is not None and self.overhead.low <= OVERHEAD_LIMIT_RATIO

    @property
    def problems(self) -> tuple[tuple[str, Problem], ...]:
        """Name of the training and problem."""
        return tuple((training.name, problem) for training in self.trainings for problem in training.problems)

    @property
    def passed(self) -> bool:
        """True if it ran on GPUs, every row passed, and no problem was found."""
        rows = all(check.passed for check in self.checks)
        return self.on_gpu and bool(self.checks) and rows and self.overhead_passed and not self.problems

    @property
    def unproved(self) -> tuple[str, ...]:
        """Parts of the GPU path about which the proof says nothing, whether it passed or not."""
        return tuple(_unproved(self))


def _checks(training: TrainingProof, *, ranks: int) -> Iterator[Check]:
    for rows, suffix in ((training.by_marks, ""), (training.by_import, ", imported")):
        for row in rows:
            yield Check(
                training=training.name,
                name=f"{row.part}{suffix}",
                passed=row.ratio <= LIMIT_RATIO,
                difference=row,
            )
    found = training.collectives
    if found is not None:
        passed = found.equal and (ranks == 1 or found.nccl_kernels > 0)
        yield Check(training=training.name, name="NCCL collectives", passed=passed)


def _unproved(proof: Proof) -> Iterator[str]:
    if not proof.on_gpu:
        yield "The GPU path: this training ran on the CPU."
        return
    if proof.ranks == 1:
        yield "NVLink and every transfer between GPUs: there was one GPU. NCCL only copied within it."
    else:
        yield f"The link between the {proof.ranks} GPUs: whether NCCL used NVLink or PCIe is not known."
    yield "A network between hosts, and the split of exposed communication into wait and transfer."
    yield "Light steps: the overhead is that of detail, compared with them."
    yield "CUDA graphs, torch.compile, DDP, FSDP, pipelines and any model but the built-in one."
