"""The daemon as a systemd service: its unit files, users and directories."""
