"""`trimtab clean`: list artifacts and checkpoints that no report needs, or remove them."""

from __future__ import annotations

from trimtab.flows.config.errors import CommandError
from trimtab.infra.store.cleaner import remove, unneeded
from trimtab.infra.store.manifest import StorageError
from trimtab.infra.tracking.registry import RegistryError
from trimtab.tasks.context import base_context
from trimtab.tasks.registry import reports_of_registered

DAY = 86_400.0


def clean(reports_days: float, idle_days: float, *, is_deleted: bool) -> None:
    """Print what is not needed and its size; remove it if `is_deleted`.

    What registered models were made of is kept, so the registry must be reachable. CommandError
    if registry or store cannot be read.
    """
    try:
        store = base_context().store
        now = store.objects.now()
        before = now - idle_days * DAY
        found = unneeded(
            store,
            reports_since=now - reports_days * DAY,
            written_before=before,
            pinned=reports_of_registered(),
        )
        for each in found:
            print(f"{each.size / 2**20:10.1f} MiB  {each.root}: {each.why}")
            if is_deleted:
                remove(store, each)
        if is_deleted:
            store.objects.drop_unfinished(before)
    except (RegistryError, StorageError) as error:
        raise CommandError(str(error)) from error
    total = sum(each.size for each in found) / 2**20
    done = "removed" if is_deleted else "would be removed: repeat with --delete"
    print(f"{total:10.1f} MiB in {len(found)} places {done}")
