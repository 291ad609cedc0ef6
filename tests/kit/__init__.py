"""What the tests share: ranks in processes of their own, conditions with deadlines, leak checks."""
