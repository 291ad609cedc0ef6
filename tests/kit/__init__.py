"""Shared by the tests: ranks in processes of their own, conditions with deadlines, leak checks."""
