"""Communication: what each mesh axis sent, what it cost, where it was called and who waited.

Tables by axis and operation (`axis_operations`), contention between axes, call sites, and waits by process group.
Matching of collectives across ranks is in `traincope.timeline`; wait and transfer of a stall are in `attribution`.
"""
