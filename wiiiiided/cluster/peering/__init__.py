"""What daemons say to each other: messages, and the rules of a link. No I/O."""
