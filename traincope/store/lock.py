"""Lock file that makes one process the agent of a node and job.

The lock belongs to an open file: a child that inherits the file holds the lock too, and the lock ends with the last
such process, however it ends. The file is node-local, because locks on network mounts depend on the mount. It lies in a
directory of the user's: in a directory of all users, anyone could take the name first.
"""

import fcntl
import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from traincope.private_files import check_owner

SHARED_MEMORY = Path("/dev/shm")
"""Node-local on every Linux, and the same directory for all ranks, while a launcher's $TMPDIR may differ per rank."""
UID_MAP = Path("/proc/self/uid_map")
LISTED = 0o755
"""Mode of a directory that every user may list."""


def job_name(run: Path, *, attempt: int) -> str:
    """Name of one attempt of one job of one user, unique on a node."""
    digest = blake2b(os.fsencode(run.resolve()), digest_size=6).hexdigest()
    return f"traincope-{os.getuid()}-{digest}-{attempt:03d}"


def node_directory() -> Path:
    """This user's directory for files of this node. It may not exist yet."""
    local = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return local / f"traincope-{_uid_of_host()}"


def _uid_of_host() -> int:
    """This user's id outside of its user namespace: root of several containers that share /dev/shm has several."""
    uid = os.getuid()
    with suppress(OSError, ValueError):
        for line in UID_MAP.read_text().splitlines():
            first, outer, length = map(int, line.split())
            if first <= uid < first + length:
                return outer + uid - first
    return uid


def make_node_directory() -> None:
    """Create this user's directory. Every user may see its names, and only this one may write.

    Raises OSError; PermissionError if another user has created it or may write to it.
    """
    with suppress(FileExistsError):
        node_directory().mkdir(mode=LISTED)
        node_directory().chmod(LISTED)  # whatever the umask; only what was created here
    check_owner(node_directory())


def lock_path(job: str) -> Path:
    return node_directory() / f"{job}.lock"


def take_lock(path: Path) -> int | None:
    """Take the lock: a descriptor that holds it until all its copies are closed; None if another process holds it.

    Raises OSError if the file cannot be created, or if others may write to this user's directory.
    """
    if path.parent == node_directory():
        make_node_directory()
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
        os.close(descriptor)  # the previous holder removed the file in the meantime


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_lock(path: Path, descriptor: int) -> None:
    """Remove the lock file before its holder ends. Only the holder may call this, so no other process can hold the
    lock.
    """
    if _is_at(descriptor, path):
        with suppress(OSError):
            path.unlink()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
