"""`trimtab clean`: list what no report needs any more, and remove it if asked to."""

from __future__ import annotations

import argparse
import sys

from trimtab.infra.settings import Settings

DAY = 86_400.0


def clean(options: argparse.Namespace, settings: Settings) -> int:
    """Print what can go and its size; `--delete` removes it.

    Without the registry nothing is listed: what registered policies were made of must stay.
    """
    from trimtab.infra.store.cleaner import remove, unneeded
    from trimtab.infra.store.manifest import StorageError
    from trimtab.infra.tracking.registry import RegistryError
    from trimtab.tasks.context import base_context
    from trimtab.tasks.registry import reports_of_registered

    try:
        store = base_context().store
        now = store.objects.now()
        before = now - options.idle_days * DAY
        found = unneeded(
            store,
            reports_since=now - options.reports_days * DAY,
            written_before=before,
            pinned=reports_of_registered(),
        )
        for each in found:
            print(f"{each.size / 2**20:10.1f} MiB  {each.root}: {each.why}")
            if options.delete:
                remove(store, each)
        if options.delete:
            store.objects.drop_unfinished(before)
    except (RegistryError, StorageError) as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 1
    total = sum(each.size for each in found) / 2**20
    done = "removed" if options.delete else "would be removed: repeat with --delete"
    print(f"{total:10.1f} MiB in {len(found)} places {done}")
    return 0
