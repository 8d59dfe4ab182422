"""The verdict: findings with evidence, confidence, advice and estimated gain.

`rank_failures` covers ranks that ended, `verdict_costs` the ledger's losses (with `pipeline_idle`,
`exposed_communication` and `hot_experts`), `traced_gpus` imported traces. `verdict` orders all. `loss_breakdown` lists
losses by cause; faults are found in `faults`.
"""
