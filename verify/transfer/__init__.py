"""Learning-rate sweeps over widths: does the optimum stay where it is?"""
