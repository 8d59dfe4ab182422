"""Device timeline: the records of a rank's GPU, from its kernel traces, or from marks on its compute stream.

A trace becomes the records that a recorder would have written, had it measured on the GPU: steps, phases, collectives
and stalls, each instant with one owner. So every analysis of a recorded run works for an imported one. Marks are such
records already: `on_device` puts them in place of the host's.
"""

from traincope.timeline.device.marked import HOST_WAITS, collectives_on_streams, on_device, why_not_on_device
from traincope.timeline.device.records import with_device_records

__all__ = ["HOST_WAITS", "collectives_on_streams", "on_device", "why_not_on_device", "with_device_records"]
