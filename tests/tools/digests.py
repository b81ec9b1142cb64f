"""Compare the contents of a store's artifacts with those that another version of the code made.

    python -m tests.tools.digests .trimtab/store/artifacts > before.json
    python -m tests.tools.digests .trimtab/store/artifacts --against before.json

A refactoring changes stage keys, which depend on code, but must not change any content. Files
are compared by stage, name and sha256, without telemetry (wall-clock times). Reports, audits and
studies quote keys and times, which differ. The exit status is 1 where a file of another stage does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from trimtab.infra.store.manifest import MANIFEST_NAME, TELEMETRY_FILES, Manifest

QUOTE_KEYS = frozenset({"report", "audit", "study", "compare"})
Contents = dict[str, list[dict[str, str]]]


def contents(artifacts: Path) -> Contents:
    """Of each stage its artifacts, each as sha256 by file name."""
    by_stage: Contents = {}
    for path in artifacts.glob(f"**/{MANIFEST_NAME}"):
        manifest = Manifest.from_bytes(path.read_bytes())
        entries = [entry for entry in manifest.files if entry.name not in TELEMETRY_FILES]
        files = {entry.name: entry.sha256 for entry in entries}
        by_stage.setdefault(manifest.stage, []).append(files)
    return {
        stage: sorted(artifacts_of_stage, key=lambda files: sorted(files.items()))
        for stage, artifacts_of_stage in sorted(by_stage.items())
    }


def differences(before: Contents, now: Contents) -> dict[str, list[str]]:
    """Of each stage the files that are only in one of both, with a - or +."""
    changes = {}
    for stage in sorted(before.keys() | now.keys()):
        files = [
            Counter(item for artifact in side.get(stage, []) for item in artifact.items())
            for side in (before, now)
        ]
        gone, new = files[0] - files[1], files[1] - files[0]
        lines = [f"- {name} {digest[:12]}" for name, digest in sorted(gone.elements())]
        lines += [f"+ {name} {digest[:12]}" for name, digest in sorted(new.elements())]
        if lines:
            changes[stage] = lines
    return changes


def main() -> int:
    """Print contents as JSON, or what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "artifacts", type=Path, help="folder of a store, such as .trimtab/store/artifacts"
    )
    parser.add_argument("--against", type=Path, help="what an earlier call printed")
    options = parser.parse_args()
    now = contents(options.artifacts)
    if options.against is None:
        json.dump(now, sys.stdout, indent=1)
        return 0
    differing = differences(json.loads(options.against.read_text()), now)
    for stage, lines in differing.items():
        print(stage, *lines, sep="\n  ")
    print(f"{sum(map(len, now.values()))} artifacts of {len(now)} stages")
    return int(bool(differing.keys() - QUOTE_KEYS))


if __name__ == "__main__":
    sys.exit(main())
