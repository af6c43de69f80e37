"""Every signal of a network under training (values, changes, gradients, updates), each with a certificate."""
