"""This node's shares of jobs: their files, their shims, what they need to start."""
