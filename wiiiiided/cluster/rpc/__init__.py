"""The daemon's unix socket: messages, frames, connections with their callers, and refusals."""
