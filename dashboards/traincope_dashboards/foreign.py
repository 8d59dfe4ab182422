"""Series of other exporters that join a run's by the labels of `traincope_rank_info`, in their own names.

Sources: the default counters of NVIDIA's dcgm-exporter (etc/default-counters.csv) and the pod metrics of
kube-state-metrics (docs/metrics/workload/pod-metrics.md).
"""

from traincope.metrics.catalogue import RANK_INFO
from traincope_dashboards.scope import Scope

GPU_UTILIZATION = "DCGM_FI_DEV_GPU_UTIL"
"""Percent of time in which a kernel ran, per GPU."""
POD_INFO = "kube_pod_info"
LABELS = {
    GPU_UTILIZATION: ("UUID", "Hostname"),
    POD_INFO: ("namespace", "pod", "node", "created_by_kind", "created_by_name"),
}
"""Series -> the labels that the queries use."""


def utilization(scope: Scope) -> str:
    """DCGM's utilization of the GPU of each rank, as a ratio, with the labels of the rank."""
    ranks = f'label_replace({scope.series_of(RANK_INFO, gpu=_KNOWN)}, "UUID", "$1", "gpu", "(.+)")'
    return f"{ranks} * on (UUID) group_left () max by (UUID) ({GPU_UTILIZATION}) / 100"


def pods(scope: Scope) -> str:
    """1 for each pod of the run, with its host, node and what created it: in Kubernetes, the Job."""
    own = f"max by (host, namespace, pod) ({scope.series_of(RANK_INFO, pod=_KNOWN)})"
    created = "node, created_by_kind, created_by_name"
    known = f"max by (namespace, pod, {created}) ({POD_INFO})"
    return f"{own} * on (namespace, pod) group_left ({created}) {known}"


_KNOWN = '!=""'
