"""Several machines as one: its members, the links between daemons, the roles."""
