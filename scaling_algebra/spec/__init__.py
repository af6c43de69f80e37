"""What users ask about: axes, powers of them, networks, optimizers, desiderata (demands) and parameterizations. These
modules describe and check the question; they compute no exponents.
"""
