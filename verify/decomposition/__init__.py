"""Splits what was trained: W_t = W_0 + dW, and every signal and gradient into the parts that follow."""
