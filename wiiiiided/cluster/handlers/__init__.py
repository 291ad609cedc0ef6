"""Requests and their answers: from the request to the sentence."""
