"""The plugin for NCCL's profiler interface: its file, its compilation and its functions.

It depends on no torch and on no NCCL: one file serves every release from 2.26.2 on. NCCL loads it into the training,
Python loads the same file, so both see one library.
"""

import os
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path

from traincope.native.build import compile_sources
from traincope.native.cached import Found, find_built, name_of
from traincope.native.installed import SOURCES
from traincope.native.library import PlacesLibrary

VARIABLE = "TRAINCOPE_NCCL_PLUGIN"
PLUGIN_SOURCES = SOURCES.parent / "nccl_profiler"
SHARED_HEADERS = ("groups.h", "places.h", "record.h")
"""Files of `dispatch/` that the plugin includes."""
NCCL_VARIABLE = "NCCL_PROFILER_PLUGIN"
"""The variable by which NCCL finds a plugin."""


class PluginUse(StrEnum):
    """Values of $TRAINCOPE_NCCL_PLUGIN."""

    OFF = "off"
    ON = "on"


class Count(IntEnum):
    """Position of each number that the plugin counts (`tables.h`)."""

    RECORDING = 0
    """1 while a run wants records. Set by Python."""
    COMMUNICATORS = 1
    OPERATIONS = 2
    CHANNELS = 3
    WITHOUT_ROOM = 4
    """Operations without a record, because too many others were under way."""
    WITHOUT_PLACE = 5
    """Operations without a record, because the segment was full."""
    LATE_CHANNELS = 6
    """Channels whose operation had no place any more."""


class PluginLibrary(PlacesLibrary):
    """The loaded plugin."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, num_places=1)
        self.counts = self._numbers("counts", len(Count))

    def thread_ended(self, number: int) -> None:
        """Hold nothing: the plugin's records are of no Python thread."""


def plugin_use() -> PluginUse:
    """The value of $TRAINCOPE_NCCL_PLUGIN. Any other value is `off`."""
    return PluginUse.ON if os.environ.get(VARIABLE, "").lower() == PluginUse.ON else PluginUse.OFF


def compile_plugin(out: Path) -> None:
    """Compile the plugin. Raises as `compile_sources`."""
    source = PLUGIN_SOURCES / "plugin.cpp"
    compile_sources(source, out, "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-s", f"-I{SOURCES}")


@cache
def plugin_name() -> str:
    """Name of the plugin's file for this machine and these sources."""
    return name_of("nccl-profiler", (*sorted(PLUGIN_SOURCES.iterdir()), *(SOURCES / name for name in SHARED_HEADERS)))


def find_plugin() -> Found:
    """Search the user's cache."""
    return find_built(plugin_name())


@cache
def load_plugin(path: Path) -> PluginLibrary:
    """Load the plugin, once per process. Raises OSError or AttributeError."""
    return PluginLibrary(path)
