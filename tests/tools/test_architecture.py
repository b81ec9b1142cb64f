"""The numbers of a checkout of known structure, and how imports are written does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.architecture import describe, structure_of, write

FILES = {
    "flows/__init__.py": "",
    "flows/run.py": "from trimtab.models import config\nfrom trimtab.tasks.sft import sft\nimport trimtab.infra.store.s3\n",
    "tasks/sft.py": "from trimtab.models.config.sft import SFT\n\n\nx = 1\n",
    "models/__init__.py": "",
    "models/config/__init__.py": "",
    "models/config/sft.py": "SFT = 1\n",
    "models/nets/net.py": "def load():\n    from ..loose import SIZE\n    from . import other\n",
    "models/nets/other.py": "import torch\n",
    "models/loose.py": "from trimtab.models.nets.net import load\n",
    "infra/store/s3.py": "",
}


@pytest.mark.parametrize("wrapper", ["", "trimtab"])
def test_a_small_checkout_has_the_numbers_that_it_is_seen_to_have(
    tmp_path: Path, wrapper: str
) -> None:
    for name, text in FILES.items():
        path = tmp_path / wrapper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("import infra", f"import {wrapper}.infra".replace(" .", " ")))
    structure = structure_of(tmp_path)
    assert structure.arrows == {
        ("flows", "trimtab.models.config"): 1,
        ("flows", "tasks"): 1,
        ("flows", "infra"): 1,
        ("tasks", "trimtab.models.config"): 1,
        ("trimtab.models.nets", "models.loose"): 1,
        ("models.loose", "trimtab.models.nets"): 1,
    }
    assert structure.circles == [frozenset({"trimtab.models.nets", "models.loose"})]
    assert describe(structure) == (
        "6 rooms, 6 arrows, 3 floors, 1 circles, 10 files, 13 lines, median 1 lines"
    )


def test_a_page_s_row_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| before | 9 |\n| now | 8 |\nend\n")
    write("7", page)
    assert page.read_text() == "| before | 9 |\n| now | 7 |\nend\n"
    page.write_text("nothing\n")
    with pytest.raises(SystemExit, match="has 0 rows"):
        write("7", page)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="none of flows, tasks, models, infra"):
        structure_of(tmp_path)
