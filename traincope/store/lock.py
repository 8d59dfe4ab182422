"""One agent a node and job: whoever holds the lock file is it.

The lock belongs to an open file, so it goes to a child that inherits it, and goes away with the
last process that has it, however that ends. The file is node-local, for locks on network mounts
are the mount's own matter; its name holds user and job.
"""

import fcntl
import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
"""Node-local everywhere on Linux, and the same for all ranks, as a launcher's $TMPDIR need not be."""


def job_name(run: Path, *, attempt: int) -> str:
    """Names one attempt of one job of one user among all on a node."""
    digest = blake2b(os.fsencode(run.resolve()), digest_size=6).hexdigest()
    return f"traincope-{os.getuid()}-{digest}-{attempt:03d}"


def lock_path(job: str) -> Path:
    local = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return local / f"{job}.lock"


def take_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it, and every copy of it, is closed; None: somebody else has it.

    Raises OSError where the file cannot be made.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # its last holder has removed it meanwhile


def remove_lock(path: Path, descriptor: int) -> None:
    """By its holder, before it ends: nobody else can have taken it."""
    if _is_at(descriptor, path):
        with suppress(OSError):
            path.unlink()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
