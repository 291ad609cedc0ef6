"""Runs at the start of every Python of a job, before its program: this folder is on PYTHONPATH.

- faulthandler answers one signal with the stacks of all threads, in the file WIIIIIDE_STACKS:
  that is how `wiiiiide stacks` sees where a job hangs.
- The job's secrets come from WIIIIIDE_SECRETS into the environment of this process. They were not
  in it when the process was started, so /proc/PID/environ and `ps e` do not have them. It is the
  real environment, not a view of it: libraries in C look there, and programs that are started from
  here inherit it, as they inherit everything.
- The folder leaves sys.path, and the sitecustomize that it hid, if there is one, has its turn.

Python may be any from 3.8 on, the program is not ours, and every start takes this path: nothing is
imported that Python has not loaded already (faulthandler is built in), and no failure shows.
"""

import os
import sys

SIGNAL = 59  # SIGRTMAX - 5; wiiiiided/cluster/shim/stacks.py has it too


def _register() -> None:
    import faulthandler

    # A number, not a file object: it lives as long as the process, also after a fork.
    fd = os.open(os.environ["WIIIIIDE_STACKS"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)


def _load_secrets() -> None:
    path = os.environ.get("WIIIIIDE_SECRETS")
    if path:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            _assign(file.read(1 << 20))


def _assign(text: str) -> None:
    """NAME='value' lines, quoted as a shell reads them; a value may have several lines."""
    at = 0
    while at < len(text):
        equals = text.find("=", at)
        if equals < 0:
            return
        name, at = text[at:equals].strip(), equals + 1
        value = []
        while at < len(text) and text[at] != "\n":
            quote = text[at]
            if quote in "'\"":
                end = text.index(quote, at + 1)
                value.append(text[at + 1 : end])
                at = end + 1
            else:
                at += quote == "\\"
                value.append(text[at : at + 1])
                at += 1
        os.environ[name] = "".join(value)


def _make_way() -> None:
    """Leave Python as if this module had never been found."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as problem:
        if problem.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


for _action in (_register, _load_secrets):
    try:
        _action()
    except Exception:
        pass
_make_way()
