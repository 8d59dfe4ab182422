"""Channel between the agents of a job, and the witness copies that agents keep for each other.

Agents of different hosts greet each other with the job's key, and each copies the last seconds of its ranks' records to
one other host. `peers` runs it, `settings` and `members` show where the others are, `sealing` and `channel` carry
messages, `listening` answers them, `copying` reads a rank's last records, `witnessing` keeps those of other hosts, and
`comparing` compares both.

Everything runs on threads of its own. A peer that does not answer delays neither the agent nor a training.
"""
