"""The list of all hooks. A new hook is one file and one line here. `probes.Hook` is the protocol."""

from traincope.native.nccl import PluginUse, plugin_use
from traincope.record.communication.collectives import Collectives
from traincope.record.communication.ddp import DistributedDataParallelStall
from traincope.record.communication.fallback import CollectivesFallback
from traincope.record.communication.meshes import Meshes
from traincope.record.communication.new_groups import NewGroups
from traincope.record.communication.objects import ObjectCollectives
from traincope.record.communication.streams import Streams
from traincope.record.communication.waits import Waits
from traincope.record.compute.checkpoints import Checkpoints
from traincope.record.compute.data import DataLoading
from traincope.record.compute.debug_tools import DebugTools
from traincope.record.compute.flops import Flops
from traincope.record.compute.memory.readings import Memory
from traincope.record.compute.modules import Modules
from traincope.record.compute.phases import Phases
from traincope.record.compute.pipeline import PipelineActions
from traincope.record.compute.scaler import GradientScaling
from traincope.record.gpu.hardware import Hardware
from traincope.record.gpu.nccl import NcclPlugin
from traincope.record.gpu.windows import KernelWindows
from traincope.record.links.hook import Links
from traincope.record.probes import Hook
from traincope.record.process.busy_threads import BusyThreads
from traincope.record.process.exits import Exits
from traincope.record.process.flight import FlightRecorder
from traincope.record.process.group_end import GroupEnd
from traincope.record.process.handled_signals import HandledSignals
from traincope.record.process.interruptions import Compilation, GarbageCollection
from traincope.record.process.outside_reader import OutsideReader
from traincope.record.process.signals import Signals
from traincope.record.process.stack_samples import StackSampling
from traincope.record.process.usage import ThreadUsage
from traincope.record.state.checks import StateChecks
from traincope.record.state.learning_rates import LearningRates
from traincope.record.state.non_finite import NonFinite
from traincope.record.state.outside_ddp import OutsideDDP
from traincope.record.state.outside_units import OutsideUnits
from traincope.record.trainers.parts import TrainerParts


def make_hooks() -> tuple[Hook, ...]:
    """Create all hooks, in order of installation. They are removed in reverse order."""
    meshes = Meshes()
    collectives = Collectives(meshes)
    phases = Phases()
    waits = Waits(collectives, phases)
    return (
        meshes,
        collectives,
        CollectivesFallback(collectives),
        waits,
        Streams(collectives, waits),
        phases,
        StateChecks(phases),
        NonFinite(phases),
        OutsideDDP(phases),
        OutsideUnits(phases),
        LearningRates(phases),
        DistributedDataParallelStall(collectives, phases, waits),
        ObjectCollectives(phases),
        NewGroups(),
        PipelineActions(phases),
        DataLoading(phases),
        GarbageCollection(),
        Compilation(),
        Checkpoints(phases),
        TrainerParts(),
        GradientScaling(),
        GroupEnd(),
        Exits(),
        HandledSignals(),
        Signals(),
        FlightRecorder(),
        OutsideReader(),
        StackSampling(),
        ThreadUsage(),
        BusyThreads(),
        DebugTools(phases),
        Hardware(),
        Links(),
        Memory(phases),
        Modules(phases),
        KernelWindows(),
        *((NcclPlugin(),) if plugin_use() is PluginUse.ON else ()),
        Flops(phases),
    )
