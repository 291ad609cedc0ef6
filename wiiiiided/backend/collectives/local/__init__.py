"""The collectives of one team, one page each: what a rank does between its steps."""
