"""The layers of the package, as its imports say them: nobody imports upwards."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "wiiiiided"

BOTTOM = {"errors", "config", "log", "text", "autoload"}

# What a layer may import of the package, besides itself.
ALLOWED = {
    "errors": set(),
    "log": set(),
    "text": set(),
    "config": {"errors"},
    "autoload": set(),
    "domain": {"errors"},
    "jobfile": {"domain", "errors"},
    "wire": {"domain", "errors"},
    "control": {"domain", "errors"},
    "figures": {"domain", "wire"},
    "report": {"figures", "domain", "wire", "text"},
    "top": {"client", "domain", "wire", "text", "config", "errors"},
    "trust": {"errors"},
    "peering": {"control", "domain", "wire", "errors"},
    "ship": {"errors"},
    "shim": {"ship"},
    "client": {"domain", "ship", "wire", "config", "errors"},
    "daemon": {
        *("control", "figures", "domain", "jobfile", "shim", "wire", "shm", "trust", "peering"),
        *("config", "errors", "log", "text"),
    },
    "cli": {
        *("client", "control", "daemon", "domain", "figures", "jobfile", "report", "shim", "ship"),
        "top",
        *("wire", "config", "errors", "text"),
    },
    "shm": {"errors"},
    "codec": {"errors"},
    "net": {"codec", "wire", "errors", "log"},
    "engine": {"net", "codec", "shm", "wire", "errors", "config", "log"},
    "collectives": {"engine", "shm", "errors"},
    "train": {"collectives", "engine", "shm", "errors"},
    "torch": {
        "train",
        "collectives",
        "engine",
        "shm",
        "wire",
        "errors",
        "config",
        "log",
        "autoload",
    },
}

# The daemon's own order, lowest first: its folders, and the modules beside them. Each may import
# what stands before it, and of its own.
DAEMON = (
    {"settings", "notify", "journal", "probe", "records", "reserve"},
    {"store"},
    {"keeper", "views"},
    {"conversation"},
    {"shares"},
    {"port", "watching"},
    {"cluster"},
    {"answers"},
    {"host"},
    {"member"},
    {"main"},
)

# Imports inside a function, of what would be upwards: the entry point makes the first group.
LATE = {("autoload", "torch")}

# What never loads torch or numpy: the daemon is small, a command is instant.
LIGHT = {
    *("domain", "jobfile", "control", "figures", "ship", "shim", "client", "daemon"),
    *("top", "report", "cli", "trust", "peering"),
}
# What an attempt's supervisor loads: a job must not break when a package is replaced under it.
SHIM_USES = {"shim", "ship/unpack.py", "ship/entries.py", "ship/inside.py"}
# It runs inside the job's own interpreter, of any version, before anything else does.
BOOTSTRAP = "shim/bootstrap/sitecustomize.py"

SERIALIZED = {"wire/tensors_build.py", "wire/tensors_memory.py", "wire/tensors_write.py"}
MAY_IMPORT_TORCH = {"shm/kernels.py", "engine/loop.py", *SERIALIZED}
MAY_IMPORT_NUMPY = {"shm/kernels.py", "shm/slots.py", *SERIALIZED}

MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def _parse(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text())


_tree = functools.cache(_parse)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Full names of everything imported anywhere below: `from a.b import c` is a.b.c."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def _at_import(module: str) -> set[str]:
    """What is imported when the module is: not what stands inside functions."""
    tree = _parse(module)  # its own: the bodies are taken out
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return set(_imports(tree))


def _layer(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def _layers_of(imports: set[str]) -> set[str]:
    found = {name.split(".")[1] for name in imports if name.startswith("wiiiiided.")}
    return found - {"__version__"}


def test_a_module_imports_only_from_below() -> None:
    for module in MODULES:
        if module == "__init__.py":
            continue
        layer = _layer(module)
        assert layer in ALLOWED, f"{module} belongs to no layer"
        found = _layers_of(set(_imports(_tree(module)))) - {layer}
        late = {to for source, to in LATE if source == layer}
        assert found - late <= ALLOWED[layer], f"{module} imports {found - ALLOWED[layer]}"
        assert not late & _layers_of(_at_import(module)), f"{module} imports {late} too early"


def test_the_architecture_names_every_module_of_the_daemon_and_no_other() -> None:
    _, _, rest = (ROOT / "docs" / "ARCHITECTURE.md").read_text().partition("### Inside the daemon")
    rows = [line.split("|") for line in rest.partition("## ")[0].splitlines() if "/` |" in line]
    named = {row[1].strip(" `/"): set(re.findall(r"`(\w+)`", row[3])) for row in rows}
    for folder in (PACKAGE / "daemon", *(PACKAGE / "daemon").glob("*/")):
        there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        if there:
            assert named.pop(folder.name) == there, folder.name
    assert not named


def _below_in_the_daemon(part: str) -> set[str]:
    """What that folder or module of the daemon may import of the daemon, itself included."""
    below: set[str] = {part}
    for step in DAEMON:
        if part in step:
            return below
        below |= step
    raise AssertionError(f"{part} has no place in the daemon's order")


def test_a_module_of_the_daemon_imports_only_from_below() -> None:
    for module in MODULES:
        mine = module.removeprefix("daemon/").removesuffix(".py").split("/")[0]
        if module.startswith("daemon/") and mine != "__init__":
            names = (name.split(".") for name in _imports(_tree(module)))
            parts = {name[2] for name in names if name[:2] == ["wiiiiided", "daemon"]}
            assert parts <= _below_in_the_daemon(mine), module


def test_the_layers_have_no_circle() -> None:
    done: set[str] = set()
    while left := {layer for layer in ALLOWED if layer not in done}:
        ready = {layer for layer in left if ALLOWED[layer] <= done}
        assert ready, f"a circle among {left}"
        done |= ready


def test_the_bottom_imports_nothing_heavy() -> None:
    for layer in BOTTOM:
        heavy = {"torch", "numpy"} & {name.split(".")[0] for name in _at_import(f"{layer}.py")}
        assert not heavy, f"{layer} imports {heavy}"
    assert _at_import("__init__.py") == set()


def test_torch_and_numpy_are_imported_where_they_are_needed_only() -> None:
    for module in MODULES:
        roots = {name.split(".")[0] for name in _at_import(module)}
        layer = _layer(module)
        if "torch" in roots:
            assert layer in ("torch", "collectives", "train") or module in MAY_IMPORT_TORCH, module
        if "numpy" in roots and layer in ("wire", "codec", "net", "shm", *BOTTOM):
            assert module in MAY_IMPORT_NUMPY, module


def test_daemon_and_commands_load_neither_torch_nor_numpy() -> None:
    for module in MODULES:
        roots = {name.split(".")[0] for name in _imports(_tree(module))}
        assert _layer(module) not in LIGHT or not roots & {"torch", "numpy"}, module


def test_the_shim_uses_the_standard_library_alone() -> None:
    imports = ((m, name) for m in MODULES if _layer(m) == "shim" for name in _imports(_tree(m)))
    for module, name in imports:
        root, *rest = name.split(".")
        if root == "wiiiiided":
            assert rest[0] == "shim" or f"{rest[0]}/{rest[1]}.py" in SHIM_USES, (module, name)
        else:
            assert root in sys.stdlib_module_names, (module, name)


def test_what_the_shim_borrows_is_of_the_standard_library_too() -> None:
    for module in SHIM_USES - {"shim"}:
        roots = {name.split(".")[0] for name in _imports(_tree(module))}
        assert roots - {"wiiiiided"} <= sys.stdlib_module_names, module


def test_the_control_plane_has_no_clock_no_chance_and_no_io() -> None:
    for module in MODULES:
        if _layer(module) == "control":
            roots = {name.split(".")[0] for name in _imports(_tree(module))}
            allowed = {"__future__", "bisect", "collections", "heapq", "typing"}
            allowed |= {"msgspec", "wiiiiided"}
            assert roots <= allowed, f"{module} imports {roots - allowed}"


def test_the_environment_is_read_in_one_place() -> None:
    readers = {
        module
        for module in MODULES
        for node in ast.walk(_tree(module))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"))
        or (isinstance(node, ast.Name) and node.id in ("environ", "getenv"))
    }
    assert readers <= {"config.py", BOOTSTRAP}
