"""What clients ask, and what they are answered: from the socket to the sentence."""
