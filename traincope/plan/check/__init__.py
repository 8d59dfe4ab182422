"""Rules that a training plan should keep, whoever runs it.

training_plan    what the rules know of a plan
problem          a broken rule, with its cost
registry         all rules, and the check of a plan
parallelism, memory, stability, checkpoints, shapes, data    one family of rules each
readers          plans of other frameworks, as TrainingPlan
"""
