"""Values of the training that go bad: memory that changes by itself (`checks.py`), and numbers that are not finite
(`non_finite.py`), both opt-in; parameters outside of DDP, and learning rates of its replicas.
"""
