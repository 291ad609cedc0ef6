"""Between machines: addresses, sockets, links, and a network that is only pretended."""
