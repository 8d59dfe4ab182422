"""Pipeline: recorded actions, recognition and replay of schedules, the bubble's parts, and gaps of a drawn step.

The formulas and orders of known schedules are in `traincope.plan`; sums per step are in `ledger`.
"""
