"""What is asked, and what is answered: from the request to the sentence."""
