"""Which changes of a folder show without reading its files."""

from __future__ import annotations

import os
from pathlib import Path

from trimtab.infra.processes.fork_server import file_states


def test_every_change_shows_and_nothing_else(tmp_path: Path) -> None:
    package, elsewhere = tmp_path / "package", tmp_path / "elsewhere"
    for folder in (package, elsewhere, package / "__pycache__"):
        folder.mkdir()
    (elsewhere / "module.py").write_text("VALUE = 1")
    (package / "linked").symlink_to(elsewhere)  # as trimtab/models is
    (package / "text.txt").write_text("a")
    first = file_states(package)
    assert set(first) == {str(package / name) for name in ("linked/module.py", "text.txt")}

    (package / "__pycache__" / "module.pyc").touch()
    (package / ".#module.py").symlink_to("somebody@somewhere")  # how Emacs locks a file
    assert file_states(package) == first

    before = (elsewhere / "module.py").stat()
    (elsewhere / "module.py").write_text("VALUE = 2")  # as long, and put back to the same time
    os.utime(elsewhere / "module.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    second = file_states(package)
    assert {name for name in first if first[name] != second[name]} == {
        str(package / "linked" / "module.py")
    }
    (package / "text.txt").unlink()
    assert set(file_states(package)) < set(second)
