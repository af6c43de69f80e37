"""The question: axes, powers, networks, optimizers, desiderata, parameterizations. Data only; computes nothing."""
