"""Linear inequalities between rates and unknowns, the cones they bound, and maxima of linear forms on cones."""
