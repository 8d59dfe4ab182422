"""State of the training: checksums of parameters and optimizer state, to find memory that went bad.

It is opt-in (`corruption_check_steps`). Reading starts in `checks.py`.
"""
