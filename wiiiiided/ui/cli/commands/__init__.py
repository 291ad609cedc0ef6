"""The commands: one command, one file of its name."""
