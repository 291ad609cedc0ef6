"""The bounds of a spec that its types do not say, for specs that did not come from `jobfile`.

A job file's own checker says the same with line and suggestion; this is the daemon's own check.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wiiiiided.domain.spec import JobSpec

MAX_WORKERS: Final = 4096  # of one node, and cores of one worker
MAX_NODES: Final = 1024
MAX_NAME: Final = 64  # characters
MAX_WORDS: Final = 4096  # in a command, an environment or a list
MAX_TEXT: Final = 1 << 17  # MAX_ARG_STRLEN: Linux starts no program with a longer argument
MAX_SPEC: Final = 1 << 18  # as it is stored and sent; a shim's order, in which a text may be three
# times as long, has 1 MiB. Without it the queue, and what a link carries, would have no bound.
MAX_GLOBS, MAX_GLOB_CHARS = 100, 1000  # in output.checkpoints: as many as a node looks for
MAX_SECONDS: Final = 10 * 365 * 86400.0
LEAST_ALONE_S: Final = 15.0  # of stop_alone: more than a restart of the coordinator takes


def problems_of(spec: JobSpec) -> list[str]:
    """Sentences about what is impossible in a spec; none is good."""
    resources, policy = spec.resources, spec.policy
    least, most = resources.nodes
    workers = resources.workers_per_node
    seconds = (
        *(policy.max_time_s, policy.hang_timeout_s, policy.stop_alone_s),
        *(policy.restart.backoff_s, policy.grace_s),
    )
    texts = (*spec.run.command, *spec.run.env, *spec.run.env.values(), *spec.run.pass_env)
    checks = (
        (1 <= len(spec.name) <= MAX_NAME and spec.name.isprintable(), "name is not a name"),
        (bool(spec.run.command) and all(spec.run.command[:1]), "run.command is empty"),
        (len(texts) <= MAX_WORDS, "run has too many words"),
        (all(len(t) <= MAX_TEXT and "\0" not in t for t in texts), "run has an impossible text"),
        (sum(map(len, spec.notify.command)) <= MAX_TEXT, "notify.command is too long"),
        (not any("=" in name or not name for name in spec.run.env), "run.env has a bad name"),
        (0 <= policy.priority <= 100, "policy.priority is not from 0 to 100"),
        (len(policy.after) <= MAX_WORDS, "policy.after is too long"),
        (0 <= policy.restart.max <= 1000, "policy.restart.max is not from 0 to 1000"),
        (all(s is None or 0 <= s <= MAX_SECONDS for s in seconds), "a duration is impossible"),
        (
            policy.stop_alone_s is None or policy.stop_alone_s >= LEAST_ALONE_S,
            "policy.stop_alone is too short",
        ),
        (0 <= policy.warn_before_s <= MAX_SECONDS, "policy.warn_before is impossible"),
        (1 <= least <= (most or least) <= MAX_NODES, "resources.nodes is impossible"),
        (isinstance(workers, str) or 1 <= workers <= MAX_WORKERS, "workers_per_node is impossible"),
        (1 <= (resources.cores_per_worker or 1) <= MAX_WORKERS, "cores_per_worker is impossible"),
        (len(spec.notify.command) <= MAX_WORDS, "notify.command has too many words"),
        (len(spec.output.collect) <= MAX_WORDS, "output.collect is too long"),
        (
            len(spec.output.checkpoints) <= MAX_GLOBS
            and all(0 < len(glob) <= MAX_GLOB_CHARS for glob in spec.output.checkpoints),
            "output.checkpoints is too long",
        ),
    )
    return [sentence for good, sentence in checks if not good] + too_large(spec)


def too_large(spec: JobSpec) -> list[str]:
    """A sentence where all its texts together are more than a job may have."""
    size = len(msgspec.json.encode(spec))
    if size <= MAX_SPEC:
        return []
    return [f"the job has {size} bytes, all its texts together; at most {MAX_SPEC} are possible"]
