"""Several machines as one: who belongs, the links between daemons, the roles."""
