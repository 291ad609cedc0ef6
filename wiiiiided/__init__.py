"""WIIIIIDE: the machines you already have, as one PyTorch trainer."""

__version__ = "0.1.0"
