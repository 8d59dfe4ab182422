"""Channel between the agents of a job, and the witness copies that agents keep for each other.

Agents of different hosts greet each other with the job's key, and each copies the last seconds of its ranks' records to
the next hosts. `peers` runs it, `settings` shows where the others are, `network` carries messages, `links` send the
copies that `copies` makes and keeps, `comparing` compares hosts, and `tree` sums up collectives of many hosts. The
node's agent splits waits by the same histories.

Everything runs on threads of its own. A peer that does not answer delays neither the agent nor a training.
"""
