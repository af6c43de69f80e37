"""Trains networks at growing sizes and records every quantity after every step."""
