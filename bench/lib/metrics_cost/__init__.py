"""Watching a job: metrics_cost.py's parts.

rank   a rank that trains, in blocks        processor_time   that of top and of the daemon
"""
