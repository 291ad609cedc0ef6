"""How a payload is written on the wire: one codec a file, and who chooses among them."""
