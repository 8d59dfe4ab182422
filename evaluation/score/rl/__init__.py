"""Score of reports about post-training with reinforcement: injected bottlenecks of known role, rank and phase."""
