"""Processes of ranks: the pool that tests share, torchrun's workers, and their places on a mesh."""
