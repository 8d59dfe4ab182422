"""Each layout trains as one process does: losses, gradients and weights; and the exchanges inside, on known numbers."""
