"""Tree of all agents of a job: it splits the waits in groups with hosts of which an agent keeps no copies.

Each agent sums up its ranks' parts in collectives (`entries`) and sends the sums to its parent, which adds those of its
other children and its own (`reduction`). Where a sum has all members, the transfer is known, and goes back down to the
agents whose ranks took part (`results`). The agent of rank 0's host gives each agent its parent (`places`). Each agent
bounds the offset between its clock and its parent's by their messages (`offsets`).

Nothing here knows the network: `live.peers` carries the messages.
"""
