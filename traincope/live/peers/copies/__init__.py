"""Copies of ranks: made on their host, kept on a witness as chains, and joined to histories of collectives.

`live.peers.peers` decides when to copy and to whom.
"""
