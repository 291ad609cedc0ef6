"""The collectives: what a rank does between its waits (see engine.operation)."""
