"""Hooks on communication: every collective and message, the waits for it, and the groups and meshes it belongs to.

Stalls of a CUDA stream are measured in `record.gpu`. Calls are matched across ranks in `traincope.timeline`.
"""
