"""`import torch` makes the backend known, and nothing of ours can break it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _python(
    program: str, *folders: Path, stderr: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter, with folders before everything else on its path."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    with open(stderr, "w") if stderr else contextlib.nullcontext(subprocess.PIPE) as sink:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
            env=environ,
            cwd="/",  # not here: the working folder comes first on the path
            timeout=100,
        )


def test_import_torch_alone_makes_the_backend_known() -> None:
    ran = _python(
        """
        import sys
        import torch.distributed as d
        assert d.Backend.WIIIIIDE == "wiiiiide"
        assert d.Backend("wiiiiide") == "wiiiiide"
        print(sorted(name for name in sys.modules if name.startswith("wiiiiided")))
        """
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "['wiiiiided', 'wiiiiided.autoload']", "nothing heavy is imported"
    assert ran.stderr == ""


def test_a_failing_registration_is_one_line_and_torch_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import wiiiiided.autoload as a\n"
        "def broken():\n"
        "    raise ValueError('made to fail')\n"
        "a._register = broken\n"
    )
    program = """
        import torch
        import torch.distributed as d
        assert not hasattr(d.Backend, "WIIIIIDE")
        print(torch.ones(2).sum().item())
        """
    ran = _python(program, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "2.0"
    assert ran.stderr.splitlines() == [
        "wiiiiide: the backend is not available: ValueError: made to fail"
    ]
    # The line cannot be written: that is no reason to break torch either.
    ran = _python(program, tmp_path, stderr="/dev/full")
    assert ran.returncode == 0
    assert ran.stdout.strip() == "2.0"


def test_a_broken_installation_does_not_break_import_torch(tmp_path: Path) -> None:
    # Everything of the package but what registers it fails to import.
    package = tmp_path / "wiiiiided"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "autoload.py").write_text((ROOT / "wiiiiided" / "autoload.py").read_text())
    for name in ("torch", "engine", "shm", "wire", "collectives"):
        (package / name).mkdir()
        (package / name / "__init__.py").write_text("raise ImportError('half an installation')\n")
    ran = _python(
        """
        import torch
        import torch.distributed as d
        import wiiiiided
        try:
            d.init_process_group("wiiiiide", store=d.HashStore(), rank=0, world_size=1)
        except ImportError as error:
            print(error)
        d.init_process_group("gloo", store=d.HashStore(), rank=0, world_size=1)
        d.destroy_process_group()
        """,
        tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "half an installation"


def test_registering_again_is_harmless() -> None:
    ran = _python(
        """
        import torch
        import torch.distributed as d
        from wiiiiided.autoload import register
        register()
        register()
        import wiiiiided.torch
        assert d.Backend.WIIIIIDE == "wiiiiide"
        """
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""


EVERYTHING = """
    import multiprocessing, os, sys, tempfile

    def ours():
        return {name for name in sys.modules if name.startswith("wiiiiided")}

    def rank_main(rank, folder):
        import torch
        import torch.distributed as d

        store = f"file://{folder}/store"
        d.init_process_group("wiiiiide", init_method=store, rank=rank, world_size=2)
        after_init = ours()
        g = d.group.WORLD
        for count in (4, 200_000):
            for dtype in (torch.float32, torch.bfloat16, torch.int8):
                x = torch.ones(count, dtype=dtype)
                many = [torch.empty_like(x) for _ in range(2)]
                d.all_reduce(x)
                d.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()).wait()
                d.all_reduce_coalesced([x, x.clone()])
                d.reduce(x, 0)
                d.broadcast(x.view(2, -1).t(), 0)
                d.all_gather(many, x)
                d.all_gather_into_tensor(torch.empty(2 * count, dtype=dtype), x)
                d.reduce_scatter(x, many)
                d.reduce_scatter_tensor(x, torch.ones(2 * count, dtype=dtype))
                d.all_to_all(many, [x.clone(), x.clone()])
                d.all_to_all_single(torch.empty_like(x), x)
                d.gather(x, many if rank == 0 else None)
                d.scatter(x, many if rank == 0 else None)
                works = [d.isend(x, 1 - rank), d.irecv(many[0], 1 - rank)]
                for work in works:
                    work.wait()
        d.barrier()
        g.monitored_barrier()
        sys.modules["wiiiiided.torch"].shared_empty(70_000).fill_(1)
        sys.modules["wiiiiided.torch"].stats()
        side = d.new_group([0, 1])
        try:
            d.all_reduce(torch.ones(3 + rank), group=side)
        except RuntimeError as error:
            assert "different" in str(error), error
        d.barrier()
        d.destroy_process_group()
        late = ours() - after_init
        assert not late, late

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=rank_main, args=(r, folder)) for r in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            sys.exit(max(rank.exitcode for rank in ranks))
"""


def test_nothing_of_ours_is_imported_after_a_group_has_been_made() -> None:
    ran = _python(EVERYTHING)
    assert ran.returncode == 0, ran.stderr
