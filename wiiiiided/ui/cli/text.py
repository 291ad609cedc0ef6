"""Untrusted text on a terminal, as the commands know it: `wiiiiided.text` has it for all layers."""

from __future__ import annotations

from wiiiiided.text import ELLIPSIS, cell, clean, columns, cut, pad

__all__ = ["ELLIPSIS", "cell", "clean", "columns", "cut", "pad"]
