"""Tables of operations: one row per operation of a pipelined job, as the StragglerAnalysis study publishes them.

`reading` checks the columns, `whole_steps` the steps, `records` turns them into records of the recorder's format, and
`importing` writes the run directory.
"""
