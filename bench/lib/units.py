"""Sizes in bytes, in units of 1024."""

KB, MB = 1024, 1024 * 1024


def size_text(nbytes: int) -> str:
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"
