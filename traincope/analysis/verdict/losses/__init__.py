"""Losses of step time: `loss_breakdown` divides the ledger's terms by cause, `verdict_costs` makes findings of them.

The other modules judge one kind of loss each. Nothing here is about faults.
"""
