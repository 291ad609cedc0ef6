"""How a payload is written on the wire: one codec a file, and the chooser among them."""
