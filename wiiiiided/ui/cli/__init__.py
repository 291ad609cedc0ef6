"""The `wiiiiide` command: one command, one file."""
