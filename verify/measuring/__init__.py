"""Trains at growing sizes and records every quantity at every step."""
