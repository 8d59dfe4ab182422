"""A host's links: ports of its network, slots of its cards, and errors in the kernel's log."""
