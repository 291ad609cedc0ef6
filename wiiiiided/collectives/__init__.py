"""The collectives, one page each: what a rank does between its steps. Plans, see engine.operation."""
