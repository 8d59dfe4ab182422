"""Mounts of this machine: the file system of a path, and whether it is behind a network."""

from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "pvfs2"),
        *("wekafs", "orangefs", "panfs", "gfs2", "ocfs2", "virtiofs"),
        "fuse",  # programs that do not give the kernel a name of their own, e.g. mountpoint-s3, davfs2
    )
)
REMOTE_PREFIXES = ("fuse.", "fuseblk")
"""File systems in user space: most of them are object stores or network file systems."""
LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.lxcfs"))
"""File systems of containers without root. They pass on to a disk of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo."""

    point: Path
    filesystem: str

    @property
    def is_remote(self) -> bool:
        if self.filesystem in LOCAL_FUSE:
            return False
        return self.filesystem in NETWORK or self.filesystem.startswith(REMOTE_PREFIXES)

    @property
    def is_memory(self) -> bool:
        """Its files take memory of the node."""
        return self.filesystem in ("tmpfs", "ramfs")


def mount_of(place: Path) -> Mount | None:
    """Return the mount of a path, which need not exist. None if it is unknown, as on systems without /proc."""
    try:
        return find_mount(place, MOUNTS.read_text())
    except OSError:
        return None


def find_mount(place: Path, mountinfo: str) -> Mount | None:
    """Return the mount that contains `place`, by the text of /proc/self/mountinfo (see proc_pid_mountinfo(5)).

    Of several mounts on one point the last is on top. Spaces in paths are octal escapes.
    """
    mount = None
    resolved = place.resolve()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, names = before.split(), after.split()
        if len(fields) < 5 or not names:
            continue
        point = Path(fields[4].encode("ascii", "backslashreplace").decode("unicode_escape"))
        holds = resolved.is_relative_to(point)
        if holds and (mount is None or len(point.parts) >= len(mount.point.parts)):
            mount = Mount(point=point, filesystem=names[0])
    return mount
