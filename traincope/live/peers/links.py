"""Links: connections of this agent to its witnesses, each on a thread of its own.

A link sends signs of life, and the newest copy of each rank once. A witness that does not answer delays no other.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import thread_time

from traincope.errors import ServerError
from traincope.live.peers.channel import Channel, Message
from traincope.live.peers.copying import RankCopy
from traincope.live.peers.members import Member
from traincope.live.peers.witnessing import ALIVE, FAREWELL, copy_message
from traincope.record.instrumentation.guard import guard

logger = logging.getLogger(__name__)

Part = tuple[int, bool]
"""A rank, and whether the copy holds its records."""
Newest = Mapping[Part, RankCopy]
"""The newest copies, a rank's records before what its agent saw."""


class CpuMeter:
    """CPU time that several threads spend on one task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the CPU time of this thread."""
        before = thread_time()
        try:
            yield
        finally:
            with self._lock:
                self._seconds += thread_time() - before

    def take(self) -> float:
        """Seconds since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


class Link:
    """Connection to one witness."""

    def __init__(
        self,
        channel: Channel,
        member: Member,
        *,
        newest: Callable[[], Newest],
        meter: CpuMeter,
        interval_seconds: float,
    ) -> None:
        """`newest`: the copies to send. `meter`: counts the CPU time of sending."""
        self.member = member
        self._channel, self._newest, self._meter, self._interval_seconds = channel, newest, meter, interval_seconds
        self._sent: dict[Part, RankCopy] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=guard(self._run), daemon=True, name="traincope-link")

    def start(self) -> None:
        self._thread.start()

    @property
    def works(self) -> bool:
        """False before the start, and once the witness refused a message or did not answer."""
        return self._thread.is_alive()

    def finish(self) -> None:
        """Send the newest copies, take leave and end, on the link's thread."""
        self._ending.set()

    def join(self, seconds: float) -> None:
        """Wait for the end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._interval_seconds):
                if not self._turn():
                    return
            if self._turn():
                self._tell(Message(kind=FAREWELL))
        finally:
            self._channel.close()

    def _turn(self) -> bool:
        """Send what is due; False if the witness did not take it."""
        with self._meter.running():
            return self._tell(Message(kind=ALIVE)) and all(
                self._send(part, copy) for part, copy in self._newest().items()
            )

    def _send(self, part: Part, copy: RankCopy) -> bool:
        if self._sent.get(part) is copy:
            return True
        if not self._tell(copy_message(copy)):
            return False
        self._sent[part] = copy
        return True

    def _tell(self, message: Message) -> bool:
        try:
            answer = self._channel.ask(message)
        except (OSError, ServerError) as error:
            logger.info("the agent of host %s no longer answers: %s", self.member.host.name, error)
            return False
        if answer.kind != "answer":
            logger.info("the agent of host %s refuses: %s", self.member.host.name, answer.fields.get("why"))
        return answer.kind == "answer"
