"""Check of the machines before a run: the ranks measure together (`measuring`), pure functions judge (`judging`).

Only `measuring` needs torch. `text` and `document` show the judgement.
"""
