"""Hooks on trainers whose steps are more than training, such as post-training with reinforcement.

A part of a step that is not training (`traincope.events.APART`) owns all that happens inside. Not here: callbacks that
a training adds itself (`traincope.integrations`).
"""
