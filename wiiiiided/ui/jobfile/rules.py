"""The rules for a text that serves as a name, a path, a variable, a glob or an interface.

Each rule takes a text and gives back nothing, or what is wrong with it and what to do. The patterns
beside them say the same to editors, as far as a pattern can.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wiiiiided.domain import placeholders
from wiiiiided.domain.limits import MAX_NAME, MAX_TEXT
from wiiiiided.ui.jobfile.describe import quoted, show


class Complaint(NamedTuple):
    """The problem, and what to do; an empty suggestion is replaced by the key's example."""

    message: str
    suggestion: str = ""


NODE_LENGTH = 64  # HOST_NAME_MAX
INTERFACE_LENGTH = 15  # IFNAMSIZ, less its closing zero
PATH_BYTES = 4095  # PATH_MAX, less its closing zero

# Every rank gets these from WIIIIIDE itself: a file's own value would break the job in odd ways.
RESERVED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
RESERVED_PREFIXES = ("TORCHELASTIC_", "WIIIIIDE_")
# Variables that a user may set for a worker, read by `config.Config`.
FREE = ("WIIIIIDE_LOG", "WIIIIIDE_SPIN", "WIIIIIDE_STALL_WARNING_S")

_NOT_RESERVED = (
    f"(?!({'|'.join(RESERVED)})$)"
    "(?!TORCHELASTIC_)"
    f"(?!WIIIIIDE_(?!({'|'.join(name.removeprefix('WIIIIIDE_') for name in FREE)})$))"
)

ANY_PATTERN = "^[^\\u0000]*$"
NAME_PATTERN = f"^(?! )(?=.{{1,{MAX_NAME}}}$)[^\\u0000-\\u001f\\u007f]*[^\\u0000-\\u0020\\u007f]$"
WORKDIR_PATTERN = "^[^~\\u0000][^\\u0000]*$"
PYTHON_PATTERN = "^/[^\\u0000]*$"
NODE_PATTERN = f"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NODE_LENGTH - 1}}}$"
ENV_NAME_PATTERN = f"^{_NOT_RESERVED}[^=\\u0000-\\u001f\\u007f]+$"
PASS_NAME_PATTERN = f"^{_NOT_RESERVED}[A-Za-z_][A-Za-z0-9_]*$"
GLOB_PATTERN = "^(?![/~])(?!(.*/)?\\.{1,2}(/|$))[^\\u0000]*[^/\\u0000]$"
GRADIENTS_PATTERN = r"^(exact|bf16|int8|int4|topk:0?\.([0-4][0-9]{0,8}|50{0,8}))$"
INTERFACE_PATTERN = f"^([^\\s/:]{{1,{INTERFACE_LENGTH}}}|[0-9a-fA-F.:]+/[0-9]{{1,3}})$"


def unfit(text: str, most_bytes: int) -> Complaint | None:
    """The rule for every text of a job: no zero characters, valid Unicode, not too long."""
    if "\0" in text:
        return Complaint("has a zero character (\\u0000), which no program can be given")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return Complaint(f"{show(text)} is not valid Unicode", "write it in UTF-8")
    if size > most_bytes:
        return Complaint(f"has {size} bytes; at most {most_bytes} are possible", "make it shorter")
    return None


def anything(text: str) -> Complaint | None:
    return unfit(text, MAX_TEXT - 1)


def name(text: str) -> Complaint | None:
    if not text:
        return Complaint("is empty", "name the job, or leave the key out")
    if len(text) > MAX_NAME:
        length = f"has {len(text)} characters; at most {MAX_NAME} are possible"
        return Complaint(length, f"for example {quoted(text[:MAX_NAME].strip(), MAX_NAME)}")
    if not text.isprintable():
        return Complaint(f"{show(text)} has characters that cannot be printed", "leave them out")
    if text != text.strip():
        return Complaint(f"{show(text)} begins or ends with a blank", "leave it out")
    return None


def workdir(text: str) -> Complaint | None:
    if not text:
        return Complaint("is empty", 'write "." for the folder of the job file')
    return _tilde(text) or unfit(text, PATH_BYTES)


def python(text: str) -> Complaint | None:
    if not text:
        return Complaint("is empty", "leave the key out for the daemon's own Python")
    if not text.startswith("/"):
        message = f"{show(text)} is not an absolute path, so it would differ from node to node"
        return _tilde(text) or Complaint(message)
    return unfit(text, PATH_BYTES)


def _tilde(text: str) -> Complaint | None:
    if text.startswith("~"):
        return Complaint(f"{show(text)}: ~ is not expanded", "write the whole path")
    return None


def node(text: str) -> Complaint | None:
    if re.fullmatch(NODE_PATTERN, text):
        return None
    return Complaint(
        f"{show(text)} cannot be a node's name",
        "a node is called as its host is, up to the first dot",
    )


def env_name(text: str) -> Complaint | None:
    """The rule for a name in run.env: POSIX allows almost anything."""
    if not text:
        return Complaint("a variable without a name")
    if "=" in text:
        variable, _, value = text.partition("=")
        return Complaint("a variable's name has no '='", f"write {variable} = {quoted(value)}")
    if not text.isprintable():
        return Complaint("a variable's name has characters that cannot be printed")
    return reserved(text) or unfit(text, PATH_BYTES)


def pass_name(text: str) -> Complaint | None:
    """The rule for a name in run.pass_env: a shell must be able to read it."""
    if "=" in text:
        message = f"{show(text)} has a value; only names are listed here"
        return Complaint(message, f"write {quoted(text.partition('=')[0])}")
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", text):
        guess = text.lstrip("$").strip("{}")
        suggestion = f"did you mean {guess}?" if re.fullmatch("[A-Za-z_]\\w*", guess) else ""
        return Complaint(f"{show(text)} is not a variable's name", suggestion)
    return reserved(text) or unfit(text, PATH_BYTES)


def reserved(text: str) -> Complaint | None:
    if text in FREE or not (text in RESERVED or text.startswith(RESERVED_PREFIXES)):
        return None
    return Complaint(f"{show(text)} is set by WIIIIIDE for every rank", "leave it out")


def glob(text: str) -> Complaint | None:
    parts = text.split("/")
    if not text:
        return Complaint("is empty", 'write "**" for everything')
    if text.startswith(("/", "~")):
        return Complaint(f"{show(text)} is not inside the working directory", _from_inside(parts))
    if ".." in parts:
        return Complaint(f"{show(text)} leaves the working directory", _from_inside(parts))
    if "." in parts or parts[-1] == "":
        kept = [part for part in parts if part not in ("", ".")]
        folder = parts[-1] in ("", ".")
        wanted = quoted("/".join([*kept, "**"] if folder else kept))
        message = "is a folder, not its files" if folder else 'has a part that is only "."'
        return Complaint(f"{show(text)} {message}", f"write {wanted}")
    return unfit(text, PATH_BYTES)


def _from_inside(parts: list[str]) -> str:
    kept = "/".join(part for part in parts if part not in ("", ".", "..", "~"))
    return f"write it from there, as in {quoted(kept or '**')}"


def gradients(text: str) -> Complaint | None:
    if re.match(GRADIENTS_PATTERN, text) and (":" not in text or _is_part(text)):
        return None
    return Complaint(
        f"{show(text)} is no gradient codec", 'choose "exact", "bf16", "int8", "int4", "topk:0.01"'
    )


def _is_part(text: str) -> bool:
    return float(text.partition(":")[2]) > 0


def interface(text: str) -> Complaint | None:
    if text == "auto":
        return None
    import ipaddress  # only a job file that names a network pays for it

    if "/" in text:
        try:
            ipaddress.ip_network(text)
        except ValueError as problem:
            return Complaint(f"{show(text)} is not a network: {problem}", _network(text))
        return None
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _interface_name(text)
    suggestion = f"write the network it is in, as in {quoted(text + '/24')}"
    return Complaint(f"{show(text)} is one address", _network(f"{text}/24") or suggestion)


def _network(text: str) -> str:
    import ipaddress

    try:
        return f"did you mean {quoted(str(ipaddress.ip_network(text, strict=False)))}?"
    except ValueError:
        return ""


def _interface_name(text: str) -> Complaint | None:
    if not text:
        return Complaint("is empty", 'write "auto" to choose by route')
    if len(text.encode(errors="replace")) > INTERFACE_LENGTH:
        message = f"{show(text)} is longer than the {INTERFACE_LENGTH} characters of an interface"
        return Complaint(message, "ip -brief link lists them")
    if not text.isprintable() or " " in text or ":" in text or text in (".", ".."):
        return Complaint(f"{show(text)} cannot be an interface", "ip -brief link lists them")
    return None


def notice(text: str) -> Complaint | None:
    """The rule for notify.command: its placeholders must be known."""
    unknown = placeholders.unknown(text)
    if not unknown:
        return anything(text)
    known = " ".join(f"{{{word}}}" for word in placeholders.NAMES)
    message = f"{{{unknown[0]}}} is not a placeholder"
    return Complaint(message, f"there are {known}; other braces need a blank inside")
