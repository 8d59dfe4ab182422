"""What a hook is, and the list of those there are: adding one is one file and one line here."""

from typing import Protocol

from traincope.record.checkpoints import Checkpoints
from traincope.record.collectives import Collectives
from traincope.record.data import DataLoading
from traincope.record.ddp import DistributedDataParallelStall
from traincope.record.fallback import CollectivesFallback
from traincope.record.flops import Flops
from traincope.record.garbage import GarbageCollection
from traincope.record.hardware import Hardware
from traincope.record.memory import Memory
from traincope.record.meshes import Meshes
from traincope.record.modules import Modules
from traincope.record.phases import Phases
from traincope.record.pipeline import PipelineActions
from traincope.record.recorder import Recorder
from traincope.record.scaler import GradientScaling
from traincope.record.signals import Signals
from traincope.record.streams import Streams
from traincope.record.waits import Waits
from traincope.record.windows import KernelWindows


class Hook(Protocol):
    """Something of torch (or Python) that is watched.

    `install` raises where it cannot watch: its message becomes the probe's state in `rank.json`,
    what it had done is taken back by `remove`, and the run goes on without it. `remove` restores
    exactly what was there.
    """

    name: str
    level: int
    """The lowest level at which it is on (`probes.py`)."""

    def install(self, recorder: Recorder) -> None: ...

    def remove(self) -> None: ...


def make_hooks() -> tuple[Hook, ...]:
    """All hooks, in the order they are installed; they are removed in the opposite one."""
    meshes = Meshes()
    collectives = Collectives(meshes)
    waits = Waits(collectives.pending)
    phases = Phases()
    return (
        meshes,
        collectives,
        CollectivesFallback(collectives),
        waits,
        Streams(collectives, waits),
        phases,
        DistributedDataParallelStall(collectives, phases, waits),
        PipelineActions(),
        DataLoading(),
        GarbageCollection(),
        Checkpoints(),
        GradientScaling(),
        Signals(),
        Hardware(),
        Memory(phases),
        Modules(phases),
        KernelWindows(),
        Flops(phases),
    )
