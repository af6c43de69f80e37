"""Studies: claims of the papers, trained and judged, and sweeps of the learning rate over widths."""
