"""Whether the nodes of a gang have the same Python, torch and wiiiiided: said before anything runs.

Ranks of different versions may disagree about how a tensor is cut or a message is framed, and find
out hours later, or never. Compared is what matters: 3.11 of "3.11.7", 2.13.0 of "2.13.0+cpu".
"""

from __future__ import annotations

from collections.abc import Mapping

from wiiiiided.cluster.control.job import Versions
from wiiiiided.text import listed

SHOWN = 32  # characters of a version that a job's interpreter printed, which is not trusted


def disagreement(found: Mapping[str, Versions], backend: str) -> str:
    """The difference, with every node's version; empty when they agree. wiiiiided matters only to a
    job whose ranks talk through it."""
    seen = {
        "python": {node: _python(has.python) for node, has in found.items()},
        "torch": {node: has.torch.partition("+")[0] for node, has in found.items()},
    }
    if backend == "wiiiiide":
        seen["wiiiiided"] = {node: has.wiiiiided for node, has in found.items()}
    differ = [_sentence(what, per) for what, per in seen.items() if len(set(per.values())) > 1]
    if not differ:
        return ""
    advice = "install the same on all, or choose nodes with resources.use"
    return f"{'; '.join(differ)}; {advice}"


def _python(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _sentence(what: str, per_node: Mapping[str, str]) -> str:
    """`torch differs: a and b have 2.13.0, c has 2.12.1`."""
    nodes: dict[str, list[str]] = {}
    for node, version in per_node.items():
        nodes.setdefault(version, []).append(node)
    said = (
        f"{listed(who)} {'has' if len(who) == 1 else 'have'} {_shown(version)}"
        for version, who in nodes.items()
    )
    return f"{what} differs: {', '.join(said)}"


def _shown(version: str) -> str:
    clean = "".join(char if char.isprintable() else "?" for char in version[:SHOWN])
    return clean or "none"
