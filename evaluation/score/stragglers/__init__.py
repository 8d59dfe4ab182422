"""Score of the straggler analysis: real trainings with a rank that is slow by a known time, and healthy ones."""
