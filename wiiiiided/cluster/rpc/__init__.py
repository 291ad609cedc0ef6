"""Connections and their manners: who talks, how much at once, and how one says no."""
