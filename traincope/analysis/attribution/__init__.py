"""Attribution of time: who or what owns each instant of a rank's training thread.

Slices of the thread, the ledger's terms, the split of stalls into wait and transfer, the time on the wire of each
collective, and the rank that released each stall. Sums per step are in `ledger`.
"""
