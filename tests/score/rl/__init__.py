"""Score of reports about post-training with reinforcement: injected bottlenecks whose role, rank and phase are known."""
