"""Errors of the communication, by the type and the text of an exception: mostly another rank is the cause.

The backends raise general types, so the text decides, whichever line of the training raises it. A type of torch's own
decides alone, unless the text shows that the rank itself is at fault: NCCL's errors of CUDA and of usage have the same
type.
"""

import re
from collections.abc import Iterable

TYPES = frozenset(
    {"DistBackendError", "DistNetworkError", "DistStoreError", "RendezvousConnectionError", "RendezvousTimeoutError"}
)
"""Types of torch's errors of communication."""
GENERAL_TYPES = frozenset({"RuntimeError"})
"""Types under which the backends raise their errors too."""
TEXTS = {
    "gloo": r"Application timeout caused pair closure|Timed out waiting \d+ ?ms for (send|recv) operation"
    r"|Connection closed by peer \[|(Read|Write) error \[|(Read|Write) timeout \[|Socket closed \[|writev? \["
    r"|Connect timeout \[|[Gg]loo connectFullMesh failed|\[enforce fail at [^\]]*gloo/",
    "monitored_barrier": r"failed to pass monitoredBarrier|reached monitoredBarrier, but received errors"
    r"|timed out in monitoredBarrier|encountered error running collective: CollectiveFingerPrint",
    "checked_collectives": r"Detected mismatch between collectives on ranks",
    "NCCL": r"[NR]CCL error|[NR]CCL communicator was aborted|[Cc]ollective operation timeout"
    r"|nccl(System|Remote|Internal)Error|(operations|collectives?) (have|has) failed or timed out"
    r"|watchdog (thread )?(got stuck|terminated|caught)|c10d key-value store by key",
    "other_backends": r"\b(HCCL|oneCCL|UCC|MPI) (error|failure|timeout)|call hccl api failed",
    "store": r"wait timeout after \d+ ?ms|[Ss]ocket [Tt]imeout|failed to recv, got 0 bytes|Timeout waiting for key:"
    r"|client socket has (timed out|failed to connect)|(recvValue|sendBytes|recvBytes) failed on SocketImpl"
    r"|Timed out initializing process group in store based barrier"
    r"|Timed out after \d+ seconds waiting for clients",
}
"""Backend -> its texts for a time-out, a lost connection or its own check of the other ranks."""
OWN_TEXTS = (
    r"nccl(UnhandledCuda|InvalidUsage|InvalidArgument)|unhandled cuda error|[Cc]uda failure"
    r"|[Dd]uplicate GPU detected|NCCL error.*invalid (usage|argument)|has failed to (bind|listen)|EADDRINUSE"
)
"""Texts of errors that a rank makes by itself, whatever their type."""
COMMUNICATION = re.compile("|".join(TEXTS.values()), re.DOTALL)
OWN = re.compile(OWN_TEXTS, re.DOTALL)
TIMEOUT = re.compile(r"[Tt]imed? ?out|[Tt]ime-out|TIMEOUT")
FAILED_TO_PASS = re.compile(r"\bRanks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")


def is_communication_error(types: Iterable[str], text: str) -> bool:
    """Return whether an exception with these types, its own first, and this text is one of the communication."""
    names = frozenset(types)
    if OWN.search(text) is not None:
        return False
    return bool(names & TYPES) or (bool(names & GENERAL_TYPES) and COMMUNICATION.search(text) is not None)


def is_timeout(text: str) -> bool:
    """Return whether an error of the communication says that its time was over."""
    return TIMEOUT.search(text) is not None


def ranks_that_failed_to_pass(text: str) -> tuple[int, ...]:
    """Ranks, by their number in the group, that torch's `monitored_barrier` names in its error; empty without one."""
    match = FAILED_TO_PASS.search(text)
    return () if match is None else tuple(int(rank) for rank in match.group(1).split(","))
