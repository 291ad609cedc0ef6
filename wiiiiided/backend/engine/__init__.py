"""The engine moves operations forward: one progress loop per process, its links, its groups."""
