"""The numbers of a checkout of known structure, and how imports are written does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.architecture import Structure, describe, excesses, rewrite, structure_of

FILES = {
    "flows/__init__.py": "",
    "flows/run.py": "from models import config\nfrom tasks.sft import sft\nimport infra.store.s3\n",
    "tasks/sft.py": "from models.config.sft import SFT\n\n\nx = 1\n",
    "models/__init__.py": "",
    "models/config/__init__.py": "",
    "models/config/sft.py": "SFT = 1\n",
    "models/nets/net.py": "def load():\n    from ..loose import SIZE\n    from . import other\n",
    "models/nets/other.py": "import torch\n",
    "models/loose.py": "from models.nets.net import load\n",
    "infra/store/s3.py": "def put():\n    from infra.store import local\n",
    "infra/store/local.py": "import infra.store.s3\n",
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
        ("flows", "models.config"): 1,
        ("flows", "tasks"): 1,
        ("flows", "infra"): 1,
        ("tasks", "models.config"): 1,
        ("models.nets", "models.loose"): 1,
        ("models.loose", "models.nets"): 1,
    }
    assert structure.circles == [frozenset({"models.nets", "models.loose"})]
    assert structure.inner_circles["infra"] == [frozenset({"infra.store.s3", "infra.store.local"})]
    assert describe(structure) == (
        "6 rooms, 6 arrows, 3 floors, 1 circles, 1 inside rooms, 11 files, 16 lines, median 1 lines"
    )


PAGE = "| now | old |\n| tasks | 9 | 9 | 2,000 | all |\n| infra | 1 | 2 | 1 | few |\n"


def test_a_page_holds_the_numbers_and_a_limit_for_each_room() -> None:
    structure = Structure({"tasks.sft": 1301, "infra.store": 7}, frozenset())
    page = rewrite(structure, PAGE)
    assert page == (
        "| now | 2 rooms, 0 arrows, 1 floors, 0 circles, 0 inside rooms, 2 files, 1,308 lines, "
        "median 654 lines |\n| tasks | 1 | 1,301 | 1,350 | all |\n| infra | 1 | 7 | 1 | few |\n"
    )
    (complaint,) = excesses(structure, page)
    assert complaint.startswith("infra: 7 lines; allowed: at most 1.")
    assert excesses(Structure({"flows": 1}, frozenset()), page) == [
        "flows: has no row in the table of rooms"
    ]
    with pytest.raises(SystemExit, match="has 0 rows"):
        rewrite(structure, "nothing\n")


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="none of flows, tasks, models, infra"):
        structure_of(tmp_path)
