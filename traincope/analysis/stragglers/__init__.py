"""Stragglers: the ranks that the others wait for, and the roots of pipeline jitter.

    own_work.py           each rank's own work in every step, and which ranks are peers
    persistence.py        is a rank late step after step, beyond noise?
    patterns.py           since when, how often, growing or not
    slow_groups.py        hosts, racks and rails of stragglers
    wait_chains.py        a late rank that waited itself passes the wait on
    stragglers.py         the result: who, by how much, in which term
    roots.py              which rank's delay causes jitter in its pipeline
    slowdown.py, operation_order.py    what stragglers cost a job that was imported from a table of operations
    stretches.py          steps of such a job in which a rank computes more slowly than in its others

Findings and advice are in `verdict`.
"""
