"""Replays of recorded steps with other times, and the gains that they show.

`moves` turns records into the actions of each rank, `replay` plays them with changed times, `recorded` chooses the
steps, `pipeline_change` replays a pipeline in another order. `prices` gives the verdict the gain of a removed cause.
"""
