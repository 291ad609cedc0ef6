"""Bytes and values, without any I/O: what crosses a link between two processes."""
