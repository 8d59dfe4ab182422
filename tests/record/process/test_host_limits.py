"""Limits are read from files as the kernel writes them: of cgroups of both versions, in and out of containers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from traincope.record.process.host_limits import (
    CpuQuota,
    cpu_quota,
    host_idle_ns,
    memory_pressure_file,
    memory_stall_ns,
)

STAT = "nr_periods 900\nnr_throttled 7\nthrottled_time 31\n"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"


def kernel(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


VERSION_2 = {
    "proc/self/cgroup": "0::/pod/train\n",
    "sys/fs/cgroup/pod/train/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/pod/cpu.stat": STAT,
}
VERSION_1 = {
    "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/1f\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "25000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.stat": STAT,
}
"""A container of Docker sees its own cgroup at the root, and the host's path of it."""


@pytest.mark.parametrize(
    ("files", "cores", "throttled_ns"),
    [
        pytest.param(VERSION_2, 1.5, 7 * 100_000_000, id="version 2, on the cgroup above"),
        pytest.param(VERSION_2 | {"proc/self/cgroup": "0::/../pod\n"}, None, None, id="a cgroup out of sight"),
        pytest.param(VERSION_1, 0.5, 7 * 50_000_000, id="version 1"),
        pytest.param(VERSION_1 | {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, None, None, id="no quota"),
        pytest.param({}, None, None, id="no cgroups"),
    ],
)
def test_the_smallest_quota_of_all_cgroups_above_counts(
    tmp_path: Path, files: Mapping[str, str], cores: float | None, throttled_ns: int | None
) -> None:
    quota = cpu_quota(kernel(tmp_path, files))
    assert (quota.cores, quota.throttled_ns()) == (cores, throttled_ns) if quota is not None else cores is None


def test_a_quota_without_counts_says_so(tmp_path: Path) -> None:
    quota = CpuQuota(cores=1.0, period_ns=1, counts=str(tmp_path / "cpu.stat"))
    (tmp_path / "cpu.stat").write_text("usage_usec 5\n")
    with pytest.raises(FileNotFoundError, match="has no nr_throttled"):
        quota.throttled_ns()


def test_stalls_by_memory_are_those_of_the_own_cgroup_or_else_of_the_host(tmp_path: Path) -> None:
    kernel(tmp_path, {"proc/self/cgroup": "0::/pod\n", "proc/pressure/memory": PRESSURE})
    of_host = memory_pressure_file(tmp_path)
    kernel(tmp_path, {"sys/fs/cgroup/pod/memory.pressure": PRESSURE.replace("1234", "77")})
    own = memory_pressure_file(tmp_path)
    assert own is not None
    assert of_host is not None
    assert (memory_stall_ns(of_host), memory_stall_ns(own)) == (1_234_000, 77_000)


def test_the_idle_time_of_the_host_is_that_of_all_its_cores(tmp_path: Path) -> None:
    assert host_idle_ns(kernel(tmp_path, {"proc/uptime": "100.00 150.25\n"})) == 150_250_000_000
