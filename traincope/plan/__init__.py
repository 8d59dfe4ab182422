"""Formulas: what theory predicts for a layout, without a run.

    hardware    peak FLOP/s of accelerators
    cadence     how often to save a checkpoint
    model       weights, FLOPs and bytes of a transformer
    pipeline    schedules, their timetables and bubbles
    layout      memory, communication and time of a whole layout

No torch, and no files. What a run measured stands in `analysis`.
"""
