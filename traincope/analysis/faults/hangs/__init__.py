"""Hangs and mismatched collectives: which rank is the culprit, which ranks waited for it, and on what evidence.

`calls` holds what each rank issued in its latest windows. `stacks` and `standing` decide where each rank stood.
`mismatches` compares the n-th collective of a group across its members; `waiting` follows who waited for whom.
`hangs` combines them. A rank is named only if the evidence forces it; otherwise the answer is `unknown`.
"""
