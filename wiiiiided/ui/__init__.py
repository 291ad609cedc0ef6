"""What people see and write: commands, the screen, reports, job files."""
