"""Memory of a rank: readings of its total, the bytes of the model's tensors, and a census of all tensors in a leak."""
