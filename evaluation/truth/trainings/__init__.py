"""Trainings of known work: on paper, played by threads, and on real ranks; changed, and compared with predictions."""
