"""The verdict: findings with evidence, confidence, advice and estimated gain.

`rank_failures`, `hang_findings` and `lost_connections` cover ranks that ended or stood still, `losses` the ledger's
losses, `traced_gpus` imported traces. `verdict` orders all. Faults are found in `faults`.
"""
