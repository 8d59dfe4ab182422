"""Memory, FLOPs and idle time of layouts on real ranks, compared with computed ones."""
