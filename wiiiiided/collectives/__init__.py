"""The collectives, one page each: what a rank does between its steps (see engine.operation)."""
