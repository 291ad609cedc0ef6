"""Between daemons: messages, and the rules of a link. No I/O."""
