"""GPUs of a host: which there are, and that no two trainers hold the same."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from trimtab.infra.processes.gpus import (
    TooFewGPUsError,
    gpus_of_host,
    hold_gpus,
    memory_of,
    name_of,
    unused_gpus,
)


def test_a_host_s_gpus_are_those_with_a_device_file(tmp_path: Path) -> None:
    assert gpus_of_host({}, tmp_path) == ()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    # A container may be given the host's fourth; CUDA numbers what it sees from zero.
    assert gpus_of_host({}, tmp_path) == ("0", "1")


@pytest.mark.parametrize(
    ("visible", "names"),
    [("", ()), ("-1", ()), ("2, 5", ("2", "5")), ("GPU-8f/0", ("GPU-8f/0",))],
)
def test_what_is_made_visible_counts(tmp_path: Path, visible: str, names: tuple[str, ...]) -> None:
    (tmp_path / "nvidia0").touch()
    assert gpus_of_host({"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == names


def test_no_two_hold_the_same_gpu(tmp_path: Path) -> None:
    gpus = ("2", "5", "MIG-7a/1/0")
    in_use: list[str] = []
    most, ended = 0, []

    def hold(count: int) -> None:
        nonlocal most
        for _ in range(3):
            with hold_gpus(gpus, count, tmp_path) as mine:
                assert len(mine) == count and set(mine) <= set(gpus)
                in_use.extend(mine)
                assert len(in_use) == len(set(in_use))
                most = max(most, len(in_use))
                time.sleep(0.01)
                for name in mine:
                    in_use.remove(name)
        ended.append(count)

    threads = [threading.Thread(target=hold, args=(count,)) for count in (1, 1, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(ended) == [1, 1, 1, 2, 3]
    assert most == 3


def test_a_host_without_gpus_and_a_stage_without_need_hold_none(tmp_path: Path) -> None:
    for gpus, count in (((), 2), (("0",), 0)):
        with hold_gpus(gpus, count, tmp_path) as mine:
            assert mine == ()


def test_more_than_the_host_has_is_one_clear_error(tmp_path: Path) -> None:
    with (
        pytest.raises(TooFewGPUsError, match=r"num_ranks.* 3 in all, and this host has 2 \(0, 1\)"),
        hold_gpus(("0", "1"), 3, tmp_path),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("files", "build", "env", "seen"),
    [
        (("dxg", "libcuda.so.1"), "", {}, "WSL2"),
        (("dxg", "libcuda.so.1"), "cu130", {}, "WSL2"),
        (("kfd",), "rocm7.1", {}, "ROCm"),
        (("dxg", "libcuda.so.1"), "cpu", {}, None),  # torch could not compute on it
        (("dxg",), "", {}, None),  # not NVIDIA's
        (("kfd",), "", {}, None),
        ((), "", {}, None),
        (("dxg", "libcuda.so.1", "nvidia0"), "", {}, None),  # used
        (("dxg", "libcuda.so.1"), "", {"CUDA_VISIBLE_DEVICES": ""}, None),  # meant so
        (("kfd",), "rocm7.1", {"CUDA_VISIBLE_DEVICES": "0"}, None),
    ],
)
def test_gpus_that_only_torch_sees_are_said(
    tmp_path: Path, files: tuple[str, ...], build: str, env: dict[str, str], seen: str | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    line = unused_gpus(env, tmp_path, tmp_path, build)
    assert line is None if seen is None else line is not None and f"a GPU ({seen})" in line


def test_memory_is_that_of_the_smallest_and_unknown_without_the_driver_s_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    lines = {"memory.total": "81559\\n24564", "name": "NVIDIA L4\\nNVIDIA L4"}
    cases = "".join(f"--query-gpu={name}) printf '{said}\\n';; " for name, said in lines.items())
    command.write_text(f'#!/bin/sh\n[ "$4" = 0,3 ] || exit 6\ncase $1 in {cases} esac\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert memory_of(("0", "3")) == 24564 * 2**20
    assert name_of(("0", "3")) == "NVIDIA L4"
    assert memory_of(("MIG-7a/1/0",)) is None
    assert name_of(("MIG-7a/1/0",)) is None
    command.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory_of(("0",)) is None
    assert name_of(("0",)) is None
