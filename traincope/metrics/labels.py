"""Label values of metrics, and limits on their number. A running job and the replay of a finished run share them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from traincope.analysis import Fault, FaultKind
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.reliability.reliability import Reliability
from traincope.events import CHECKPOINT_SAVED
from traincope.store.job.attempts import SAVING
from traincope.store.job.manifests import RankInfo, RunInfo

MAX_LABEL_CHARS = 128
"""Maximum length of a label. A name from a run may have any length."""
MAX_LOGGED = 16
"""Maximum number of `run.log()` names with a series. The first names to appear are shown."""
INTERNAL_MARK = "["
"""Mark in the names of values that are logged for the analysis, one value of a long list."""
MAX_MODULES = 96
"""Maximum number of modules per rank with a series of their own. The time of later modules is summed in one series."""
OTHER_MODULES = "other"
UNNAMED, OTHER_AXES = "group:", "other"
"""Prefix of the axis of an unnamed group, and the label that all these groups share."""
BUBBLE = "bubble"
"""Ledger term whose parts are differences and may be negative. Their sum is time."""
JOB_VARIABLES = ("SLURM_JOB_ID", "TRAINCOPE_JOB_ID")
"""Variables with the scheduler's id of the job. A manifest of a pod sets the second one."""
UUID_PREFIXES = ("GPU-", "MIG-")
JOB_RANK = ""
"""Rank label of a fault of the whole job."""


def clean_label(text: str) -> str:
    """Convert any text to a label: replace lone surrogates, which UTF-8 cannot encode, and cut at `MAX_LABEL_CHARS`."""
    return text[:MAX_LABEL_CHARS].encode("utf-8", "replace").decode()


def run_labels(info: RunInfo, *, attempt: int) -> tuple[str, ...]:
    """Label values of `catalogue.RUN_INFO` after run and host."""
    mesh = ",".join(f"{axis}={size}" for axis, size in info.mesh.items())
    versions = (info.versions.get("torch", ""), info.versions.get("traincope", ""))
    declared = (clean_label(name or "") for name in (info.workflow, info.role))
    return str(info.world_size), mesh, str(attempt), *versions, *declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the scheduler has put a node's ranks, by the names with which other exporters label their series."""

    node: str = ""
    job_id: str = ""
    user: str = ""
    namespace: str = ""
    pod: str = ""


NOWHERE = Placement()


def placement(environment: Mapping[str, str]) -> Placement:
    """Placement from the job's environment. Looks up nothing: a user's name could come from a directory server.

    A pod sees its namespace, name and node only if its manifest puts them into variables (docs/operate/fleet.md).
    """
    first = next((environment[name] for name in JOB_VARIABLES if environment.get(name)), "")
    return Placement(
        node=environment.get("SLURMD_NODENAME") or environment.get("NODE_NAME", ""),
        job_id=first,
        user=environment.get("SLURM_JOB_USER") or environment.get("USER", ""),
        namespace=environment.get("POD_NAMESPACE", ""),
        pod=environment.get("POD_NAME", ""),
    )


def rank_labels(info: RankInfo, *, placed: Placement = NOWHERE) -> tuple[str, ...]:
    """Label values of `catalogue.RANK_INFO` after the rank."""
    coords = ",".join(f"{axis}={at}" for axis, at in info.coord.coords.items())
    scheduled = (placed.node or ("" if info.node is None else info.node.name), placed.job_id, placed.user)
    device = (str(info.device.get("name", "")), gpu_uuid(str(info.device.get("uuid", ""))))
    return coords, *device, *map(clean_label, (*scheduled, placed.namespace, placed.pod))


def gpu_uuid(uuid: str) -> str:
    """NVML's UUID of a GPU, which DCGM uses too, from CUDA's, which has no prefix. Empty for none."""
    return uuid if not uuid or uuid.startswith(UUID_PREFIXES) else f"{UUID_PREFIXES[0]}{uuid}"


def term_and_axis(term: str) -> tuple[str, str]:
    """Split a ledger term: "exposed_wait[fsdp]" -> ("exposed_wait", "fsdp"). The parts of the bubble are one term."""
    name, _, axis = term.partition("[")
    return name.partition(".")[0] if name.startswith(f"{BUBBLE}.") else name, axis_of(axis.rstrip("]"))


def axis_of(axis: str) -> str:
    """Label of a mesh axis. Unnamed groups share one label: there may be many, and each would add a series per rank."""
    return OTHER_AXES if axis.startswith(UNNAMED) else axis


def time_parts(goodput: Goodput) -> Mapping[str, int]:
    """Parts of the job's time in ns. Unknown parts are left out."""
    return {part: ns for part, ns in goodput.parts.items() if ns is not None}


def mtbf_bounds(reliability: Reliability) -> Mapping[str, float]:
    """Known bounds of the mean time between interruptions, in ns."""
    between = reliability.mtbf
    if between is None:
        return {}
    bounds = {"low": between.low_ns, "estimate": between.ns, "high": between.high_ns}
    return {bound: ns for bound, ns in bounds.items() if ns is not None}


def badput_by_cause(reliability: Reliability) -> Mapping[tuple[str, str], int]:
    """(Part, cause) -> ns of the time that interruptions cost, where it is known in full."""
    return {
        (entry.part, entry.cause): entry.ns
        for entry in reliability.badput
        if entry.cause is not None and entry.ns is not None and not entry.unknown
    }


def counted_faults(faults: Iterable[Fault]) -> Iterator[tuple[str, str, int]]:
    """(Rank, kind, time in ns) of each fault on each of its ranks. Marks are skipped."""
    for fault in faults:
        if fault.is_fault:
            yield from ((str(rank), fault.kind.value, fault.at_ns) for rank in fault.ranks or (JOB_RANK,))


def checkpoint_end_ns(mark: Fault) -> int | None:
    """Time at which the checkpoint of this mark was complete; None if the mark is not a completed checkpoint."""
    if mark.kind is FaultKind.EVENT and mark.what == CHECKPOINT_SAVED:
        return mark.at_ns
    whole = mark.kind is FaultKind.CHECKPOINT and mark.what.partition(" ")[0] == SAVING and not mark.evidence
    return mark.until_ns if whole else None


def expected_bubble(bubble: Bubble) -> float | None:
    """Share of the step that the schedule's formula expects as bubble, or the replay if there is no formula."""
    return bubble.replay_ratio if bubble.theory_ratio is None else bubble.theory_ratio
