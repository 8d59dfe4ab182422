"""Device timeline: the records of a rank's GPU, from its kernel traces.

A trace becomes the records that a recorder would have written, had it measured on the GPU: steps, phases, collectives
and stalls, each instant with one owner. So every analysis of a recorded run works for an imported one.
"""

from traincope.timeline.device.records import with_device_records

__all__ = ["with_device_records"]
