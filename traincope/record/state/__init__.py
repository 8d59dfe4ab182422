"""Values of the training that go bad: memory that changes by itself (`checks.py`), and numbers that are not finite
(`non_finite.py`). Both are opt-in.
"""
