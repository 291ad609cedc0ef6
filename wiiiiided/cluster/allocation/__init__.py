"""This node's allocations: their files, their shims, what they need to start."""
