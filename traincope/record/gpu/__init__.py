"""Hooks on a GPU and its driver: marks on the compute stream, kernel windows, hardware faults and samples.

Nothing here initialises CUDA; each part starts after the training has used the GPU.
"""
