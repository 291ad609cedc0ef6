"""Which tests are quick: those that start no process of ours, no daemon, no rank, no command.

    test function ─► every name its code uses ─► functions, classes and fixtures under tests/ ─► …
                                                          └─ subprocess, multiprocessing, fork

A test from which the walk ends at one of those is not quick; nor is one that names a part of
the product that starts processes itself. Further into the product the walk does not go, so
while only quick tests run, a process of Python's that one of them starts fails it all the same
(`forbid_processes`).
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.process
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

_TESTS = str(Path(__file__).parents[1])
_STARTERS = {"subprocess", "multiprocessing", "torch.multiprocessing", "pty"}
_PRODUCT = "wiiiiided."
_FORKS = {"fork", "forkpty", "posix_spawn", "create_subprocess_exec", "spawn_process"}


def is_quick(item: pytest.Function) -> bool:
    """Whether a test starts no process, as far as its code and that of its fixtures tell."""
    fixtures = [each.func for all_ in _fixtures(item).values() for each in all_]
    given = getattr(item, "callspec", None)
    params = list(given.params.values()) if given is not None else []
    return not any(starts(root) for root in (item.obj, *fixtures, *params))


def _fixtures(item: pytest.Function) -> dict[str, Any]:
    return item._fixtureinfo.name2fixturedefs


_harmless: dict[int, object] = {}  # what a walk has been through in vain; kept, so are its ids


def starts(root: object) -> bool:
    """Whether the walk from here ends at a way to start a process."""
    seen: dict[int, object] = {}
    left: list[object] = [root]
    while left:
        thing = left.pop()
        if id(thing) in seen or id(thing) in _harmless:
            continue
        seen[id(thing)] = thing
        found = list(_next(thing))
        if any(map(_is_a_start, found)):
            return True
        left += found
    _harmless.update(seen)
    return False


def _is_a_start(thing: object) -> bool:
    if isinstance(thing, str):
        return thing in _FORKS
    if isinstance(thing, type | types.FunctionType):
        return _spawns(thing)
    return _is_a_starter(thing)


@functools.cache
def _spawns(thing: Any) -> bool:
    """Whether a part of the product starts processes, itself or by functions of its module."""
    if not thing.__module__.startswith(_PRODUCT):
        return False
    left = [thing, *vars(thing).values()]
    seen: set[types.FunctionType] = set()
    while left:
        part = left.pop()
        if not isinstance(part, types.FunctionType) or part in seen:
            continue
        seen.add(part)
        names = set(_names(part.__code__))
        named = [part.__globals__.get(name) for name in names]
        if names & _FORKS or any(map(_is_a_starter, named)):
            return True
        left += [one for one in named if getattr(one, "__module__", "") == thing.__module__]
    return False


def _is_a_starter(thing: object) -> bool:
    return isinstance(thing, types.ModuleType) and thing.__name__ in _STARTERS


def _next(thing: object) -> Iterator[object]:
    """The parts of a thing of the tests' own: what its code names, its methods, its parts."""
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield thing.func
    elif isinstance(thing, types.MethodType):
        yield thing.__func__
    elif isinstance(thing, types.FunctionType):
        yield from _named(thing)
    elif isinstance(thing, type) and _is_ours(thing):
        yield from thing.__mro__[1:]
        for part in vars(thing).values():
            yield part.fget if isinstance(part, property) else getattr(part, "__func__", part)
    elif _is_ours(type(thing)):
        yield type(thing)


def _named(function: types.FunctionType) -> Iterator[object]:
    inner = inspect.unwrap(function)
    if inner is not function:
        yield inner
    if (given := getattr(function, "hypothesis", None)) is not None:
        yield given.inner_test
    if not _is_ours(function):
        return
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    names = set(_names(function.__code__))
    yield from names & _FORKS
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        if isinstance(value, types.ModuleType) and (_is_ours(value) or _is_product(value)):
            yield from (getattr(value, other) for other in names if hasattr(value, other))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _is_product(module: types.ModuleType) -> bool:
    return module.__name__.startswith(_PRODUCT)


def _is_ours(thing: Any) -> bool:
    """Whether something was written under tests/."""
    module = thing if isinstance(thing, types.ModuleType) else sys.modules.get(thing.__module__)
    return str(getattr(module, "__file__", "")).startswith(_TESTS)


def forbid_processes() -> None:
    """From now on, a process that runs Python code and a fork fail the test they happen in."""
    multiprocessing.process.BaseProcess.start = _refuse  # type: ignore[method-assign,assignment]
    sys.addaudithook(_look)


def _refuse(*_: object) -> NoReturn:
    pytest.fail("a quick test started a process: tests/kit/quick.py did not see how")


def _look(event: str, args: tuple[Any, ...]) -> None:
    if event in ("os.fork", "os.forkpty", "os.posix_spawn"):
        _refuse()
    if event == "subprocess.Popen" and _is_python(args[0], args[1]):
        _refuse()


def _is_python(program: object, argv: object) -> bool:
    words = [program, *(argv if isinstance(argv, list | tuple) else [argv])]
    names = [os.path.basename(os.fsdecode(word)) for word in words if word]  # type: ignore[call-overload]
    return any(name.startswith(("python", "wiiiiide")) for name in names)
