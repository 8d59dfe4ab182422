"""Permission for the agent to read this process's stacks from outside, where the kernel restricts ptrace.

With kernel.yama.ptrace_scope 1, a process lets only its ancestors read its memory, and one process that it names
(prctl(2), PR_SET_PTRACER), with the descendants of that one. A rank names the shell that waits for the node's agent. It
does so once, early: a later choice of the training stays. Without yama the kernel refuses, and nothing is restricted.
"""

import ctypes

from traincope.record.session.agent import supervisor_of
from traincope.record.session.recorder import Recorder

PR_SET_PTRACER = 0x59616D61
TRIES = 60
"""Seconds in which the agent of another rank of the node may still start."""


class OutsideReader:
    """Hook that names the agent's shell once the rank knows it."""

    name = "outside_reader"
    level = 0

    def install(self, recorder: Recorder) -> None:
        self._recorder, self._tries_left = recorder, TRIES
        recorder.now_and_then(self._try)
        self._try()

    def remove(self) -> None:
        """Keep the permission: the rank may hang after its run. It ends with the shell."""
        self._recorder.remove_listener(self._try)

    def _try(self) -> None:
        place = self._recorder.place
        if place is None:
            return
        self._tries_left -= 1
        supervisor = supervisor_of(place)
        if supervisor is not None and supervisor.is_running():
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(supervisor.pid), 0, 0, 0)
        if supervisor is not None or not self._tries_left:
            self._recorder.remove_listener(self._try)
