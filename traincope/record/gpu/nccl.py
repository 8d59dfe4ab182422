"""Hook on NCCL: it lets NCCL load the plugin, and gives the plugin segments for its records.

Only if a person asks for it, and if no other tool's plugin would be loaded. NCCL looks for a plugin when the process'
first communicator begins; later than that, it loads none.
"""

import logging
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from traincope.native.library import Cell
from traincope.native.nccl import (
    NCCL_VARIABLE,
    VARIABLE,
    Count,
    PluginLibrary,
    PluginUse,
    find_plugin,
    load_plugin,
    plugin_use,
)
from traincope.private_files import read_regular
from traincope.record.segments.native_place import NativePlace
from traincope.record.segments.writer import ThreadWriter
from traincope.record.session.recorder import Recorder

logger = logging.getLogger(__name__)

MAX_NAME = 254
"""Bytes of a plugin's path that NCCL reads."""
SYMBOL = b"ncclProfiler_v"
"""Begin of the name by which NCCL finds a profiler in a library."""
NET_VARIABLE = "NCCL_NET_PLUGIN"
CONFIGURATIONS = ("/etc/nccl.conf", "~/.nccl.conf")
CONFIGURATION_VARIABLE = "NCCL_CONF_FILE"
STANDARD_DIRECTORIES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
NOTHING = "off: NCCL gave it nothing; NCCL loads a plugin when the process' first communicator begins, not later"


class NcclPlugin:
    """Hook on nothing in torch."""

    name = "nccl_plugin"
    level = 1

    def __init__(self) -> None:
        self._library: PluginLibrary | None = None
        self._writer: ThreadWriter | None = None
        self._path = ""
        self._seen_before = self._dropped_before = 0

    def install(self, recorder: Recorder) -> None:
        """Raises OSError or AttributeError if the plugin cannot be loaded."""
        self._recorder = recorder
        path, why = plugin_to_load(os.environ)
        if path is None:
            recorder.probes[self.name] = f"off: {why}"
            logger.warning("traincope: NCCL's own times are not recorded: %s", why)
            return
        library = self._library = load_plugin(path)
        if self._writer is None:
            self._writer, self._place = recorder.spare_writer(), NativePlace(library, 0)
        self._seen_before, self._dropped_before = self._num_seen(library), self._num_dropped(library)
        self._between_steps()
        library.counts[Count.RECORDING] = 1
        os.environ[NCCL_VARIABLE] = self._path = str(path)
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        """Record nothing more. NCCL keeps the plugin as long as it has communicators."""
        library, self._library = self._library, None
        if library is None:
            return
        library.counts[Count.RECORDING] = 0
        self._recorder.remove_listener(self._between_steps)
        self._count_drops(library)
        if os.environ.get(NCCL_VARIABLE) == self._path:
            del os.environ[NCCL_VARIABLE]
        if self._num_seen(library) == self._seen_before:
            self._recorder.probes[self.name] = NOTHING

    def _between_steps(self) -> None:
        library, writer = self._library, self._writer
        if library is not None and writer is not None:
            library.cells[Cell.STEP] = self._recorder.shared.step
            writer.keep_room(self._place)
            self._count_drops(library)

    def _count_drops(self, library: PluginLibrary) -> None:
        dropped = self._num_dropped(library)
        self._recorder.shared.dropped += dropped - self._dropped_before
        self._dropped_before = dropped

    @staticmethod
    def _num_seen(library: PluginLibrary) -> int:
        return library.counts[Count.COMMUNICATORS] + library.counts[Count.OPERATIONS]

    @staticmethod
    def _num_dropped(library: PluginLibrary) -> int:
        return library.counts[Count.WITHOUT_ROOM] + library.counts[Count.WITHOUT_PLACE]


def plugin_to_load(environment: Mapping[str, str]) -> tuple[Path | None, str]:
    """The plugin's file, or None and why NCCL is not to load it."""
    if plugin_use() is PluginUse.OFF:
        return None, f"{VARIABLE} is not `{PluginUse.ON}`"
    found = find_plugin()
    if found.path is None:
        return None, found.why
    if len(os.fsencode(found.path)) > MAX_NAME:
        return None, f"its path has more than {MAX_NAME} bytes, and NCCL would cut it: {found.path}"
    other = other_plugin(environment, own=str(found.path))
    return (found.path, "") if other is None else (None, f"NCCL loads another profiler: {other}")


def other_plugin(environment: Mapping[str, str], *, own: str) -> str | None:
    """Where NCCL would find a profiler plugin that is not ours; None if it would find none."""
    value = environment.get(NCCL_VARIABLE, own)
    if value != own:
        return f"{NCCL_VARIABLE}={value}"
    for path in (environment.get(CONFIGURATION_VARIABLE), *CONFIGURATIONS):
        if path and any(line.strip().startswith(NCCL_VARIABLE.encode()) for line in _content(Path(path)).split(b"\n")):
            return f"{NCCL_VARIABLE} in {path}"
    return next((str(path) for path in _libraries(environment) if SYMBOL in _content(path)), None)


def _libraries(environment: Mapping[str, str]) -> Iterator[Path]:
    """Libraries in which NCCL looks for a profiler by default: one of that name, otherwise the network plugin's."""
    net = environment.get(NET_VARIABLE, "")
    names = ("libnccl-profiler.so", net, f"libnccl-net-{net}.so" if net else "libnccl-net.so")
    by_machine = f"/usr/lib/{platform.machine()}-linux-gnu"
    searched = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for name in filter(None, names):
        for directory in filter(None, (*searched, *STANDARD_DIRECTORIES, by_machine)):
            yield Path(directory) / name  # an absolute name replaces the directory


def _content(path: Path) -> bytes:
    """Content of a file; empty if it cannot be read."""
    try:
        return read_regular(path.expanduser().resolve())
    except OSError:
        return b""
