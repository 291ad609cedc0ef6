"""The examples that resume, on two machines of which one has no checkpoint after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.examples.running import run

# Script, its checkpoint, the number in it, what a rank says that resumes, and its options.
SCRIPTS = [
    ("ddp/ddp.py", "checkpoint.pt", "step", "after step 2", ("--save-every=1", "--steps")),
    ("fsdp/fsdp.py", "checkpoint.pt", "step", "after step 2", ("--save-every=1", "--steps")),
    ("torchrun-script/elastic.py", "snapshot.pt", "epochs_run", "after epoch 2", ("--epochs",)),
]


@pytest.mark.parametrize("kept", ["a", "b"])
@pytest.mark.parametrize(("script", "name", "number", "resumes", "options"), SCRIPTS)
def test_all_ranks_go_on_after_the_checkpoint_that_one_machine_has(
    *, script: str, name: str, number: str, resumes: str, options: tuple[str, ...], kept: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    files = {host: tmp_path / host / name for host in "ab"}
    for file in files.values():
        file.parent.mkdir()
    run(tmp_path, script, *options, "2")
    assert [torch.load(file)[number] for file in files.values()] == [2, 2]
    assert files["a"].read_bytes() == files["b"].read_bytes()  # `pull` brings one

    files["b" if kept == "a" else "a"].unlink()
    said = run(tmp_path, script, *options, "4")
    assert [resumes in text for text in said] == [True] * 3, said
    assert [torch.load(file)[number] for file in files.values()] == [4, 4]


@pytest.mark.parametrize("kept", ["a", "b"])
def test_a_machine_without_checkpoints_gets_them_from_another(kept: str, tmp_path: Path) -> None:
    for host in "ab":
        (tmp_path / host).mkdir()
    run(tmp_path, "resume/resume.py", "--epochs", "1")
    for file in (tmp_path / ("b" if kept == "a" else "a") / "ckpt").iterdir():
        file.unlink()
    said = run(tmp_path, "resume/resume.py", "--epochs", "2")
    assert "3 ranks go on after step 40, in epoch 1" in said[0]
    saved = [{p.name.split(".")[0] for p in (tmp_path / h / "ckpt").iterdir()} for h in "ab"]
    assert saved == [{"step-0000000040", "step-0000000080"}] * 2
    assert (tmp_path / "a" / "model.safetensors").is_file()
