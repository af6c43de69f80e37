"""What training makes of every signal of a network: values, changes, gradients, updates, each with a certificate."""
