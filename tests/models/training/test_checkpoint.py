"""A checkpoint that is written while training goes on: of the moment it began; errors are told."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

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


def test_two_are_kept_however_they_were_written(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.begin_saving(tmp_path, step, {})
    checkpoint.save_checkpoint(tmp_path, 4, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]
