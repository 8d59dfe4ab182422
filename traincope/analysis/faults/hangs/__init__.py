"""Hangs and mismatched collectives: which rank is the culprit, which ranks waited for it, and on what evidence.

`evidence` holds what each rank issued and where it stood. `stops` follows who waited for whom; `mismatches`, `skips`
and `aborts` compare the collectives of a group's members, `unmade_groups` the groups that ranks made; `lost` knows lost
hosts. `hangs` combines them. A rank is named only if the evidence forces it; otherwise the answer is `unknown`.
"""
