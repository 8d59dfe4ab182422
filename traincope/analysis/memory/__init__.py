"""Memory of ranks: how much each holds and for what, which ranks grow, and which tensors grow there."""
