"""Three tiers of log lines for workers: silent, normal, verbose.

Lines go to the logger "wiiiiide". A program that has set up logging gets them there; one that has
not sees them on stderr. normal: one line per change worth a person's eye (a stall, a lost rank).
verbose: also birth and death of groups. silent: nothing but errors that are raised anyway.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("wiiiiide")

LEVELS = {"silent": logging.CRITICAL + 1, "normal": logging.WARNING, "verbose": logging.INFO}


def set_tier(tier: str) -> None:
    """Apply a tier. Only the level is touched: handlers belong to the program."""
    logger.setLevel(LEVELS[tier])


def warn(who: str, text: str) -> None:
    """A change a person should see, with who says it: `[rank 1 pid 77 group default_pg]`."""
    logger.warning("[%s] %s", who, text)


def tell(who: str, text: str) -> None:
    """Birth, death and other news of the verbose tier."""
    logger.info("[%s] %s", who, text)
