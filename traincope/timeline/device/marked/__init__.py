"""Lanes of GPUs by the marks that a recorder put on their compute streams, in place of the hosts' records."""

from traincope.timeline.device.marked.lane import HOST_WAITS
from traincope.timeline.device.marked.measured import collectives_on_streams, on_device, why_not_on_device

__all__ = ["HOST_WAITS", "collectives_on_streams", "on_device", "why_not_on_device"]
