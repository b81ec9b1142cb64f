"""Launching trainers: warm forks, failures told well."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

import trimtab
from tests.infra.toy_launch import launch_toy, write_job
from trimtab.infra.processes import environment
from trimtab.infra.processes import launch as launching
from trimtab.infra.processes.launch import (
    LineTail,
    TrainerError,
    TrainerKilledError,
    close_servers,
    launch,
    running_fork_server,
)

pytestmark = pytest.mark.usefixtures("toys")


def test_child_is_a_fork_of_the_warm_server_and_an_ordinary_process(tmp_path: Path) -> None:
    lines: list[str] = []
    tail = LineTail(tmp_path / "metrics.jsonl")

    def read() -> None:
        lines.extend(tail.read())

    launch_toy(tmp_path, "report", num_threads=3, on_report=read, env={"TOY_EXTRA": "yes"})
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["preloaded_in"] == running_fork_server("toy_preload").pid
    assert seen["pid"] == seen["group"] == seen["session"]
    assert (seen["threads"], seen["extra"], seen["stdin"]) == ("3", "yes", "")
    assert seen["descriptors"][:3] == ["0", "1", "2"]
    assert len(seen["descriptors"]) == 4  # the fourth is the listing's own
    assert (tmp_path / "trainer.log").read_text() == "printed to the log\n"
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


def test_second_job_uses_the_same_server_in_the_folder_of_its_own_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_toy(tmp_path / "a", "report")
    monkeypatch.chdir(tmp_path)
    launch_toy(tmp_path / "b", "report")
    first, second = (json.loads((tmp_path / n / "seen.json").read_text()) for n in "ab")
    assert first["preloaded_in"] == second["preloaded_in"]
    assert first["pid"] != second["pid"]
    assert first["folder"] != second["folder"] == str(tmp_path)


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("fail", "ValueError: learning rate is negative"),
        ("leave", "exit code 3"),
        ("crash", "killed by SIGSEGV"),
        ("killed", "killed by SIGKILL.*out-of-memory.*batch size"),
    ],
)
def test_failures_say_how_and_the_next_job_runs(tmp_path: Path, do: str, message: str) -> None:
    with pytest.raises(TrainerError, match=message) as caught:
        launch_toy(tmp_path / do, do)
    assert isinstance(caught.value, TrainerKilledError) == (do == "killed")
    launch_toy(tmp_path / "next", "report")


def test_failure_shows_the_exception_of_this_attempt_or_its__last_lines(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text("an older attempt\n")
    with pytest.raises(TrainerError) as caught:
        launch_toy(tmp_path, "fail")
    log = tmp_path / "trainer.log"
    assert str(caught.value) == f"ValueError: learning rate is negative\ntraceback: {log}"
    assert "line 39\nTraceback" in log.read_text()
    with pytest.raises(TrainerError) as caught:
        launch_toy(tmp_path, "leave")
    message = str(caught.value)
    assert "exit code 3" in message
    assert message.endswith("line 39")
    assert "line -59\n" not in message
    assert "older attempt" not in message
    assert "negative" not in message


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=launch_toy, args=(tmp_path / str(i), "report")) for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pids = {json.loads((tmp_path / str(i) / "seen.json").read_text())["pid"] for i in range(6)}
    assert len(pids) == 6


def test_preload_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="No module named 'no_such_module'"):
        launch(write_job(tmp_path, "report"), entry="toy_entry", preload="no_such_module")


def test_entry_that_does_not_exist_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="No module named 'no_such_entry'"):
        launch(write_job(tmp_path, "report"), entry="no_such_entry", preload="toy_preload")


PACKAGE = {
    "__init__.py": "",
    "infra/__init__.py": "",
    "infra/processes/__init__.py": "",
    "models/__init__.py": "",
    "models/preload.py": "import trimtab.models.formula",
    "models/formula.py": "import os\nIMPORTED_BY = os.getpid()\nfrom .term import TERM",
    "models/term.py": "TERM = 1",
    "models/entry.py": (
        "from pathlib import Path\n"
        "from trimtab.models import formula\n"
        "def main(job):\n"
        "    told = f'{formula.IMPORTED_BY} {formula.TERM}'\n"
        "    Path(job).with_name('seen').write_text(told)\n"
    ),
}


def _package(root: Path) -> Path:
    """A package `trimtab` with the real fork server, whose modules can be edited."""
    package = root / "trimtab"
    for name, text in PACKAGE.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    for name in ("imports.py", "processes/fork_server.py"):
        shutil.copy(Path(trimtab.__file__).parent / "infra" / name, package / "infra" / name)
    return package


@pytest.mark.parametrize("edited", ["term.py", "new.txt"])
def test_modules_are_those_of_the_server_until_the_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    package = _package(tmp_path)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(launching, "_servers", {})
    preload = "trimtab.models.preload"

    def seen(job: str) -> tuple[bool, int]:
        """Whether the server had imported the module, and the value that it has."""
        path = write_job(tmp_path / job, "")
        launch(path, entry="trimtab.models.entry", preload=preload)
        process, term = path.with_name("seen").read_text().split()
        return int(process) == running_fork_server(preload).pid, int(term)

    assert seen("first") == (True, 1)
    (package / "models" / edited).write_text("TERM = 2  # another size")
    assert seen("second") == (False, 2 if edited == "term.py" else 1)
    close_servers()
