"""One agent a node and job: a process of its own that reads what its ranks write.

It reduces finished steps to ledger rows by the same analyses as `report`, compacts what is full, keeps within the
disk's budget, and shows its observers what it found. The training only writes: without the agent nothing is lost,
and `report` does the same later.
"""
