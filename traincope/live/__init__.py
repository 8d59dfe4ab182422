"""Agent of a node: one process per node and job that reads what its ranks write.

It reduces finished steps to ledger rows with the analyses of `report`, compacts full segments, keeps within the disk
budget, and exports live numbers. Training needs no agent: without it `report` does the same later.
"""
