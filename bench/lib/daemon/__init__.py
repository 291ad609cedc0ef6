"""The daemon, its shims and its commands: daemon.py's parts.

size   memory, and processor time while nothing happens    speed  how long a person waits
state_machine  the control plane by itself
"""
