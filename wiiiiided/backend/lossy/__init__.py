"""Gradients in fewer bits, where a user has asked for it: one codec a file, pure arithmetic."""
