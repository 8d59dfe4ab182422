"""Mounts by text made by hand, in the form of proc_pid_mountinfo(5)."""

from pathlib import Path

import pytest

from traincope.store.places.mounts import Mount, find_mount, mount_of

MOUNTINFO = r"""
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 27 0:40 / /data rw - nfs4 filer:/data rw,vers=4.2
41 40 0:41 / /data/my\040disk rw shared:2 master:1 - xfs /dev/sdb1 rw
42 27 0:42 / /bucket rw - fuse.s3fs s3fs rw
43 27 0:43 / /twice rw - xfs /dev/sdc1 rw
44 27 0:44 / /twice rw - lustre mds@tcp:/fs rw
45 27 0:45 / /pod rw - fuse.fuse-overlayfs fuse-overlayfs rw
46 27 0:46 / /host rw - 9p host rw
47 27 0:47 / /objects rw - fuse mountpoint-s3 rw
nonsense
"""


@pytest.mark.parametrize(
    ("place", "point", "filesystem", "is_remote"),
    [
        ("/home/me", "/", "ext4", False),
        ("/data", "/data", "nfs4", True),
        ("/database", "/", "ext4", False),
        ("/data/my disk/runs", "/data/my disk", "xfs", False),
        ("/bucket/runs", "/bucket", "fuse.s3fs", True),
        ("/twice/runs", "/twice", "lustre", True),
        ("/pod/runs", "/pod", "fuse.fuse-overlayfs", False),
        ("/host/runs", "/host", "9p", True),
        ("/objects/runs", "/objects", "fuse", True),
    ],
)
def test_the_mount_of_a_path_is_the_deepest_and_topmost(
    place: str, point: str, filesystem: str, is_remote: bool
) -> None:
    mount = find_mount(Path(place), MOUNTINFO)
    assert mount == Mount(point=Path(point), filesystem=filesystem)
    assert mount.is_remote is is_remote


def test_without_mountinfo_no_mount_is_guessed() -> None:
    assert find_mount(Path("/home"), "") is None


def test_shared_memory_of_this_machine_is_memory() -> None:
    mount = mount_of(Path("/dev/shm/not/there"))
    assert mount is not None
    assert (mount.is_memory, mount.is_remote) == (True, False)
