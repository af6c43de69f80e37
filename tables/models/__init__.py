"""Public MoE models: what is published of them, and the powers between the smallest and the largest of a family."""
