"""The face of it all: commands, the screen, reports, job files."""
