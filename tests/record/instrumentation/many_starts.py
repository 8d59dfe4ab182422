"""A process that starts many programs while its threads work and signals arrive. Writes `ended well`."""

import gc
import os
import signal
import sys
import threading
import time

from traincope.record.instrumentation.own_children import start_program

STARTS = 200
ended = threading.Event()
calls: list[int] = []


def allocate() -> None:
    """Make cycles, so that collections come again and again, and memory of every size."""
    while not ended.is_set():
        cycle: list[object] = []
        cycle.extend([cycle, bytearray(100_000), [{} for _ in range(50)]])


def note(number: int, _frame: object) -> None:
    assert os.getpid() == PID, "a handler ran in the child"
    calls.append(number)


PID = os.getpid()
signal.signal(signal.SIGCHLD, note)
signal.signal(signal.SIGUSR1, note)
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads:
    thread.start()
gc.set_threshold(50)
sent = 0
for number in range(STARTS):
    pid = start_program(["/bin/true"], environment={}, descriptors={})
    assert pid != PID
    if number % 10 == 0:
        os.kill(PID, signal.SIGUSR1)
        sent += 1
        while calls.count(signal.SIGUSR1) < sent:
            time.sleep(0)
ended.set()
for thread in threads:
    thread.join()
assert set(calls) == {signal.SIGUSR1}, calls
assert gc.isenabled()
sys.stdout.write("ended well\n")
