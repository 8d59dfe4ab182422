"""Links: connections of this agent to its witnesses and to its parent in the tree, each on a thread of its own.

A link sends signs of life, and the newest copy of each rank once. A witness that does not answer delays no other.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic_ns, thread_time

from traincope.errors import ServerError
from traincope.live.peers.copies.copying import RankCopy
from traincope.live.peers.copies.witnessing import ALIVE, FAREWELL, copy_message
from traincope.live.peers.network.channel import Channel, Message
from traincope.live.peers.network.members import Member
from traincope.live.tree.entries import on_clock
from traincope.live.tree.offsets import ParentClock
from traincope.live.tree.reduction import Reduction
from traincope.live.tree.results import read_results
from traincope.record.instrumentation.guard import guard

logger = logging.getLogger(__name__)

CLOCK, SUMS = "clock", "sums"
"""Kinds of messages to the parent in the tree of agents."""
SHARE_OF_A_CORE = 0.003
"""Maximum mean CPU share of copies, made, sent and kept, and of comparing: both become rarer before they cost more."""
MAX_PAUSE_SECONDS = 3.0
"""Longest pause between copies. With the interval it is shorter than what a copy holds, so that copies add up."""
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


class Connection:
    """Connection to another agent on a thread of its own."""

    def __init__(
        self, channel: Channel, member: Member, *, meter: CpuMeter, interval_seconds: float, thread_name: str
    ) -> None:
        """`meter`: counts the CPU time of the exchanges."""
        self.member = member
        self._channel, self._meter, self._interval_seconds = channel, meter, interval_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=guard(self._run), daemon=True, name=thread_name)

    def start(self) -> None:
        self._thread.start()

    @property
    def works(self) -> bool:
        """False before the start, and once the other agent refused a message or did not answer."""
        return self._thread.is_alive()

    def finish(self) -> None:
        """End after the next exchange, on the connection's thread."""
        self._ending.set()

    def _run(self) -> None:
        """Exchange messages until the end, and close the channel."""
        raise NotImplementedError


class ParentLink(Connection):
    """Connection to the parent in the tree of agents: sums go up, results come down."""

    def __init__(
        self, channel: Channel, member: Member, *, reduction: Reduction, meter: CpuMeter, interval_seconds: float
    ) -> None:
        super().__init__(
            channel, member, meter=meter, interval_seconds=interval_seconds, thread_name="traincope-parent"
        )
        self._reduction, self._clock = reduction, ParentClock()

    def _run(self) -> None:
        pause_seconds = self._interval_seconds
        try:
            while not self._ending.wait(pause_seconds):
                began = thread_time()
                with self._meter.running():
                    self._exchange()
                rest_seconds = min((thread_time() - began) / SHARE_OF_A_CORE, MAX_PAUSE_SECONDS)
                pause_seconds = max(rest_seconds, self._interval_seconds)
        except (OSError, ServerError) as error:
            logger.info("the agent of host %s, the parent, no longer answers: %s", self.member.host.name, error)
        finally:
            self._channel.close()

    def _exchange(self) -> None:
        """Compare the clocks, then send what is new: it began before. Raises OSError, ServerError."""
        sent_ns = monotonic_ns()
        answered_ns = self._ask(Message(kind=CLOCK)).fields.get("now_ns")
        if type(answered_ns) is not int:
            raise ServerError("it gave no time")
        self._clock.add(sent_ns=sent_ns, answered_ns=answered_ns, received_ns=monotonic_ns())
        sums = on_clock(self._reduction.take_up(), self._clock.offsets())
        self._reduction.deliver(read_results(self._ask(Message(kind=SUMS, payload=sums.tobytes())).payload))

    def _ask(self, message: Message) -> Message:
        answer = self._channel.ask(message)
        if answer.kind != "answer":
            raise ServerError(str(answer.fields.get("why")))
        return answer


class Link(Connection):
    """Connection to one witness. Its last exchange takes leave."""

    def __init__(
        self,
        channel: Channel,
        member: Member,
        *,
        newest: Callable[[], Newest],
        meter: CpuMeter,
        interval_seconds: float,
    ) -> None:
        """`newest`: the copies to send."""
        super().__init__(channel, member, meter=meter, interval_seconds=interval_seconds, thread_name="traincope-link")
        self._newest = newest
        self._sent: dict[Part, RankCopy] = {}

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
