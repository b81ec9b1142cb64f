"""A checkpoint that is written while training goes on: of the moment it began; errors are told."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trimtab.models.training import checkpoint


def test_it_holds_what_was_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, write = threading.Event(), torch.save

    def slow(*arguments: Any) -> None:
        assert may_write.wait(60)
        write(*arguments)

    monkeypatch.setattr(torch, "save", slow)
    weight, moments = torch.ones(3), torch.ones(2)
    record = tmp_path / "metrics.jsonl"
    record.write_text("1\n")
    checkpoint.begin_saving(tmp_path, 1, {"model": {"weight": weight}, "adam": [moments, 0.5]})
    weight += 1
    moments += 1
    record.write_text("1\n2\n")
    torch.rand(1)
    drawn = torch.rand(1)
    assert not (tmp_path / "checkpoints/1").exists()
    may_write.set()
    state = checkpoint.newest_checkpoint(tmp_path)
    assert state is not None
    torch.testing.assert_close(state["model"]["weight"], torch.ones(3))
    torch.testing.assert_close(state["adam"][0], torch.ones(2))
    assert state["adam"][1] == 0.5
    assert state["step"] == 1
    assert record.read_text() == "1\n"
    torch.rand(1)
    torch.testing.assert_close(torch.rand(1), drawn, rtol=0, atol=0)


def test_a_full_disk_is_an_error_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint.begin_saving(tmp_path, 1, {"value": 1})
    checkpoint.finish_saving()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        checkpoint.begin_saving(tmp_path, 2, {"value": 2})
        with pytest.raises(OSError, match="No space left"):
            checkpoint.begin_saving(tmp_path, 3, {"value": 3})
        checkpoint.begin_saving(tmp_path, 4, {"value": 4})
        with pytest.raises(OSError, match="No space left"):
            checkpoint.finish_saving()
    state = checkpoint.newest_checkpoint(tmp_path)
    assert state is not None
    assert state["value"] == 1


def test_a_tensor_in_parts_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    """Of ranks that hold 4 and 2 of its numbers; the state has it and a plain one beside it."""
    values, moments = torch.arange(6.0), torch.ones(2)
    part = checkpoint.Part(values[:4], 0, (2, 3))
    state = {"model": {"weight": part}, "adam": [{"step": moments}]}
    checkpoint.begin_saving(tmp_path, 1, state)
    values += 1
    checkpoint.finish_saving()
    folder = tmp_path / "checkpoints/1"
    with pytest.raises(
        ValueError, match=r"hold 4 of the 6 numbers .* tensor \(2, 3\): it is damaged"
    ):
        checkpoint.whole(checkpoint.newest_checkpoint(tmp_path))
    rest = {"/model/weight": torch.arange(6.0)[4:]}
    save_file(rest, folder / "part-1.safetensors", {"/model/weight": "4"})
    found = checkpoint.newest_checkpoint(tmp_path)
    assert found is not None
    weight = found["model"]["weight"]
    for first in range(6):
        for last in range(first, 7):
            assert weight.read(range(first, last)).tolist() == list(range(first, last))
    whole = checkpoint.whole(found)
    torch.testing.assert_close(whole["model"]["weight"], torch.arange(6.0).view(2, 3))
    torch.testing.assert_close(whole["adam"][0]["step"], torch.ones(2))
    assert whole["step"] == 1


def test_a_part_that_cannot_be_written_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"weight": checkpoint.Part(torch.ones(3), 0, (3,))}
    checkpoint.save_checkpoint(tmp_path, 1, state)

    def full(tensors: Any, path: Path, _: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save_checkpoint(tmp_path, 2, state)
    found = checkpoint.whole(checkpoint.newest_checkpoint(tmp_path))
    assert found["step"] == 1
    assert found["weight"].tolist() == [1.0, 1.0, 1.0]
    checkpoint.save_checkpoint(tmp_path, 2, state)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]


def test_two_are_kept_however_they_were_written(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.begin_saving(tmp_path, step, {})
    checkpoint.save_checkpoint(tmp_path, 4, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]


def test_one_that_is_being_removed_has_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that is killed meanwhile leaves whole ones, and the next removes the rest."""
    root = tmp_path / "checkpoints"
    for step in (1, 2):
        checkpoint.save_checkpoint(tmp_path, step, {"value": step})
    remove = shutil.rmtree

    def killed(folder: Path, **more: Any) -> None:
        if (folder / checkpoint.STATE_FILE).exists():
            (folder / checkpoint.STATE_FILE).unlink()
            raise KeyboardInterrupt
        remove(folder, **more)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save_checkpoint(tmp_path, 3, {"value": 3})
    (root / ".9.partial").mkdir()  # of a save that was cut short
    oldest = checkpoint.oldest_checkpoint(tmp_path)
    assert oldest is not None and oldest["value"] == 2
    assert checkpoint.newest_checkpoint(tmp_path) is not None
    assert sorted(path.name for path in root.iterdir()) == ["2", "3"]
