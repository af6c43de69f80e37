"""What is asked: axes, powers, networks, optimizers, desiderata, parameterizations. Data only; computes nothing."""
