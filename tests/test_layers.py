"""The layers of the package, as its imports say them: none points upwards."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.source import parse

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "wiiiiided"

ROOFS = {"backend", "cluster", "ui"}  # a folder below one of them is a layer of its own
BOTTOM = {"errors", "config", "log", "text", "autoload"}

# The folders that a folder may import, besides itself. Nothing imports upwards: there is no circle.
ALLOWED = {
    "errors": set(),
    "log": set(),
    "text": set(),
    "config": {"errors"},
    "autoload": set(),
    "domain": {"errors"},
    "metrics": {"domain", "text"},
    # how tensors move
    "backend/codec": {"errors"},
    "backend/lossy": {"backend/codec", "errors"},
    "backend/shm": {"errors"},
    "backend/wire": {"errors"},
    "backend/net": {"backend/codec", "backend/wire", "errors", "log"},
    "backend/engine": {
        *("backend/net", "backend/codec", "backend/shm", "backend/wire"),
        *("errors", "config", "log"),
    },
    "backend/collectives": {"backend/engine", "backend/lossy", "backend/shm", "errors"},
    "train": {
        *("backend/collectives", "backend/engine", "backend/lossy", "backend/shm"),
        *("backend/wire", "config", "domain", "errors", "log"),
    },
    "torch": {
        *("train", "backend/collectives", "backend/engine", "backend/lossy", "backend/shm"),
        *("backend/wire", "domain"),
        *("errors", "config", "log", "autoload"),
    },
    # which job runs where
    "cluster/archive": {"errors", "text"},
    "cluster/trust": {"domain", "errors"},
    "cluster/control": {"domain", "errors", "text"},
    "cluster/shim": {"backend/wire", "cluster/archive", "errors"},
    "cluster/system": {"config", "domain", "errors", "log"},
    "cluster/rpc": {"cluster/trust", "domain", "errors", "log", "text"},
    "cluster/client": {"cluster/archive", "cluster/rpc", "config", "domain", "errors"},
    "cluster/peering": {"cluster/control", "cluster/rpc", "domain", "errors"},
    "cluster/state": {
        *("cluster/control", "cluster/peering", "cluster/rpc", "cluster/system"),
        *("domain", "errors", "log"),
    },
    "cluster/allocation": {
        *("cluster/control", "cluster/peering", "cluster/rpc", "cluster/shim", "cluster/state"),
        *("cluster/system", "cluster/trust", "backend/shm"),
        *("config", "domain", "errors", "log", "text"),
    },
    "cluster/port": {
        *("cluster/allocation", "cluster/rpc", "cluster/shim", "backend/wire", "errors", "log"),
    },
    "cluster/monitoring": {
        *("cluster/allocation", "cluster/control", "cluster/peering", "cluster/rpc"),
        *("cluster/state", "cluster/system", "backend/shm"),
        *("domain", "errors", "log", "metrics", "text"),
    },
    "cluster/membership": {
        *("cluster/allocation", "cluster/control", "cluster/peering", "cluster/port"),
        *("cluster/rpc", "cluster/state", "cluster/system", "cluster/trust"),
        *("domain", "errors", "log", "text"),
    },
    "cluster/handlers": {
        *("cluster/allocation", "cluster/control", "cluster/membership", "cluster/monitoring"),
        *("cluster/peering", "cluster/rpc", "cluster/shim", "cluster/state", "cluster/system"),
        *("cluster/trust", "domain", "errors", "log", "metrics", "text"),
    },
    "cluster/daemon": {
        *("cluster/allocation", "cluster/control", "cluster/handlers", "cluster/membership"),
        *("cluster/monitoring", "cluster/peering", "cluster/port", "cluster/rpc", "cluster/state"),
        *("cluster/system", "cluster/trust", "config", "domain", "errors", "log"),
    },
    # what people see and write
    "ui/jobfile": {"domain", "errors"},
    "ui/report": {"cluster/rpc", "metrics", "domain", "text"},
    "ui/top": {"cluster/client", "cluster/rpc", "metrics", "domain", "text", "config", "errors"},
    "ui/cli": {
        *("cluster/archive", "cluster/client", "cluster/control", "cluster/monitoring"),
        *("cluster/rpc", "cluster/shim", "cluster/system", "ui/jobfile", "ui/report", "ui/top"),
        *("config", "domain", "errors", "metrics", "text"),
    },
}

# Imports inside a function, of what would be upwards: the entry point makes the first group.
LATE = {("autoload", "torch")}

# What never loads torch or numpy: the daemon is small, a command is instant.
LIGHT = ("cluster/", "ui/", "domain", "metrics")
# What an attempt's supervisor loads: a job must not break when a package is replaced under it.
SHIM_USES = {
    "cluster/shim",
    *(f"cluster/archive/{name}.py" for name in ("unpack", "tar_entries", "safe_paths")),
    *(f"backend/wire/{name}.py" for name in ("challenge", "port_auth")),
    "errors.py",
}
# It runs inside the job's own interpreter, of any version, before anything else does.
BOOTSTRAP = "cluster/shim/bootstrap/sitecustomize.py"

SERIALIZED = {f"backend/wire/tensors_{part}.py" for part in ("build", "memory", "write")}
TORCH_LAYERS = {"torch", "train", "backend/collectives"}
PLAIN_LAYERS = {*BOTTOM, *(f"backend/{part}" for part in ("wire", "codec", "net", "shm"))}
MAY_IMPORT_TORCH = {"backend/shm/kernels.py", "backend/engine/loop.py", *SERIALIZED}
MAY_IMPORT_NUMPY = {"backend/shm/kernels.py", "backend/shm/slots.py", *SERIALIZED}

MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Module:
    """A module's full names of imports (`from a.b import c` is a.b.c), and how it names the
    process's environment."""

    anywhere: frozenset[str]
    at_import: frozenset[str]  # when the module is: not what stands inside functions
    reads_environment: bool


@functools.cache
def _module(path: str) -> Module:
    anywhere: set[str] = set()
    at_import: set[str] = set()
    environment = False
    left: list[tuple[ast.AST, bool]] = [(parse((PACKAGE / path).read_text()), False)]
    while left:
        node, late = left.pop()
        match node:
            case ast.Import() | ast.ImportFrom():
                names = set(_names(node))
                anywhere |= names
                at_import |= set() if late else names
                continue
            case ast.Attribute(attr=name) | ast.Name(id=name):
                environment |= name in ("environ", "getenv", "environb")
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        left += ((each, late) for each in ast.iter_child_nodes(node))
    return Module(frozenset(anywhere), frozenset(at_import), environment)


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        assert node.level == 0, "relative imports hide the layer"
        assert node.module is not None
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _layer(module: str) -> str:
    """`cluster/rpc` of cluster/rpc/server.py, `domain` of domain/spec.py."""
    first, _, rest = module.removesuffix(".py").partition("/")
    return f"{first}/{rest.partition('/')[0]}" if first in ROOFS else first


def _layers_of(imports: Iterable[str]) -> set[str]:
    paths = (name.replace(".", "/").partition("/")[2] for name in imports if _is_ours(name))
    return {_layer(path) for path in paths} - {"__version__"}


def _is_ours(name: str) -> bool:
    return name.startswith("wiiiiided.")


def test_a_module_imports_only_from_below() -> None:
    for module in MODULES:
        if module in {"__init__.py", *(f"{roof}/__init__.py" for roof in ROOFS)}:
            continue
        layer = _layer(module)
        assert layer in ALLOWED, f"{module} belongs to no layer"
        found = _layers_of(_module(module).anywhere) - {layer}
        late = {to for source, to in LATE if source == layer}
        assert found - late <= ALLOWED[layer], f"{module} imports {found - ALLOWED[layer]}"
        assert not late & _layers_of(_module(module).at_import), (
            f"{module} imports {late} too early"
        )


def test_the_architecture_names_every_folder_and_no_other() -> None:
    _, _, rest = (ROOT / "docs" / "ARCHITECTURE.md").read_text().partition("## The tree")
    named = re.findall(r"^\| `([\w/]+)/` \|", rest.partition("\n## ")[0], re.M)
    folders = {layer for layer in ALLOWED if (PACKAGE / layer).is_dir()}
    assert sorted(named) == sorted(folders)


def test_the_layers_have_no_circle() -> None:
    done: set[str] = set()
    while left := {layer for layer in ALLOWED if layer not in done}:
        ready = {layer for layer in left if ALLOWED[layer] <= done}
        assert ready, f"a circle among {left}"
        done |= ready


def test_the_bottom_imports_nothing_heavy() -> None:
    for layer in BOTTOM:
        heavy = {"torch", "numpy"} & {
            name.split(".")[0] for name in _module(f"{layer}.py").at_import
        }
        assert not heavy, f"{layer} imports {heavy}"
    assert not _module("__init__.py").at_import


def test_torch_and_numpy_are_imported_where_they_are_needed_only() -> None:
    for module in MODULES:
        roots = {name.split(".")[0] for name in _module(module).at_import}
        layer = _layer(module)
        if "torch" in roots:
            assert layer in TORCH_LAYERS or module in MAY_IMPORT_TORCH, module
        if "numpy" in roots and layer in PLAIN_LAYERS:
            assert module in MAY_IMPORT_NUMPY, module


def test_daemon_and_commands_load_neither_torch_nor_numpy() -> None:
    for module in MODULES:
        roots = {name.split(".")[0] for name in _module(module).anywhere}
        assert not module.startswith(LIGHT) or not roots & {"torch", "numpy"}, module


def test_the_shim_uses_the_standard_library_alone() -> None:
    modules = [module for module in MODULES if _layer(module) == "cluster/shim"]
    for module, name in ((m, name) for m in modules for name in _module(m).anywhere):
        if _is_ours(name):
            inside = name.replace(".", "/").partition("/")[2]
            used = {"cluster/shim"} if _layer(inside) == "cluster/shim" else set()
            used |= {f"{inside}.py", f"{inside.rpartition('/')[0]}.py"}
            assert used & SHIM_USES, (module, name)
        else:
            assert name.split(".")[0] in sys.stdlib_module_names, (module, name)


def test_what_the_shim_borrows_is_of_the_standard_library_too() -> None:
    for module in SHIM_USES - {"cluster/shim"}:
        roots = {name.split(".")[0] for name in _module(module).anywhere}
        assert roots - {"wiiiiided"} <= sys.stdlib_module_names, module


def test_the_control_plane_has_no_clock_no_chance_and_no_io() -> None:
    for module in MODULES:
        if _layer(module) == "cluster/control":
            roots = {name.split(".")[0] for name in _module(module).anywhere}
            allowed = {"__future__", "bisect", "collections", "heapq", "typing"}
            allowed |= {"msgspec", "wiiiiided"}
            assert roots <= allowed, f"{module} imports {roots - allowed}"


def test_the_environment_is_read_in_one_place() -> None:
    readers = {module for module in MODULES if _module(module).reads_environment}
    # Every `import torch` runs autoload, which imports nothing to look at its one variable.
    assert readers <= {"config.py", "autoload.py", BOOTSTRAP}
