"""The wheels with which `trimtab gpu-check` runs on a machine that has torch and no network.

    python -m tests.tools.gpu_bundle FOLDER [--python 3.12]

The machine has Python, torch, transformers, accelerate, peft and sentence-transformers, and where
TRL is to be compared with pandas and pyarrow. FOLDER gets this checkout's wheel and what else the
check imports, in the versions of constraints.txt; FOLDER/peers what only TRL's processes import:
sentence-transformers would import datasets too, and fail where there is no pandas. Prints the line
that installs them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of the stages; of the command line; of ZeRO and of kernels on a card.
WHEELS = (
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
    *("httpx", "httpcore", "certifi", "h11", "anyio", "idna"),
    *("typer", "shellingham", "rich", "markdown-it-py", "mdurl", "Pygments", "annotated-doc"),
    *("hjson", "einops", "msgpack", "py-cpuinfo", "liger_kernel", "trl"),
)
BUILT = ("deepspeed",)  # on PyPI as source alone; of Python only
# 1.10 is the last release of TRL that has PPO.
PEERS = ("trl", "datasets", "dill", "multiprocess", "xxhash")
PPO_OF_TRL = "trl==1.10.0"
GLIBC = (28, 27, 17)  # of the oldest machines that are thought of: manylinux_2_28 and older
MOST_MIB = 60.0


def main() -> None:
    """Make the bundle, and say how to install it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.gpu_bundle")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="Python of the machine")
    options = parser.parse_args()
    make_bundle(options.folder, options.python)
    size = sum(path.stat().st_size for path in options.folder.rglob("*.whl")) / 2**20
    print((options.folder / "README").read_text())
    print(f"{size:.1f} MiB in {options.folder}")
    if size > MOST_MIB:
        sys.exit(f"found {size:.1f} MiB; allowed: {MOST_MIB:.0f}")


def make_bundle(folder: Path, python: str) -> None:
    """Put all wheels for a version of Python into a new folder, with a README."""
    peers = folder / "peers"
    if folder.exists() and any(folder.iterdir()) and not peers.is_dir():
        sys.exit(f"{folder} holds something else: give a new folder, or that of an earlier bundle")
    shutil.rmtree(folder, ignore_errors=True)
    peers.mkdir(parents=True)
    for_machine = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for minor in GLIBC:
        for_machine += ["--platform", f"manylinux_2_{minor}_x86_64"]
    for_machine += ["--platform", "manylinux2014_x86_64"]
    _pip("download", *for_machine, "--dest", str(folder), *map(_pinned, WHEELS))
    for names in (map(_pinned, PEERS), [PPO_OF_TRL]):
        _pip("download", *for_machine, "--dest", str(peers), *names)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), *map(_pinned, BUILT))
    own_wheel(folder)
    (folder / "README").write_text(
        "On the machine, in the folder that holds this one:\n\n"
        f"python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target site "
        f"{folder.name}/*.whl && PYTHONPATH=site python3 -m trimtab gpu-check "
        f"--peers {folder.name}/peers\n"
    )


def own_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built from a copy: building leaves files behind."""
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    with tempfile.TemporaryDirectory() as place:
        for name in names.splitlines():
            source, copy = ROOT / name, Path(place) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                copy.symlink_to(source.readlink())
            elif source.is_file():
                shutil.copyfile(source, copy)
        _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), place)
    (built,) = folder.glob("trimtab-*.whl")
    return built


def _pip(command: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps"]
    subprocess.run([*pip, *arguments], check=True)


def _pinned(name: str) -> str:
    """With the version of constraints.txt."""
    found = re.search(
        rf"^{re.escape(name).replace('_', '[-_]')}==\S+", CONSTRAINTS, re.MULTILINE | re.IGNORECASE
    )
    return found[0] if found else name


CONSTRAINTS = (ROOT / "constraints.txt").read_text()


if __name__ == "__main__":
    main()
