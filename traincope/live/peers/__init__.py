"""Channel between the agents of a job, and the witness copies that agents keep for each other.

Agents of different hosts greet each other with the job's key, and each copies the last seconds of its ranks' records to
the next hosts. `peers` runs it, `settings` and `members` show where the others are, `sealing` and `channel` carry
messages, `listening` answers them, `copying` reads a rank's last records, `links` sends them, `witnessing` keeps those
of other hosts, `histories` joins successive copies, and `comparing` compares hosts. The node's agent splits waits by
the same histories.

Everything runs on threads of its own. A peer that does not answer delays neither the agent nor a training.
"""
