"""Metrics from counters: pure functions, no clock and no files."""
