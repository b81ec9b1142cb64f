"""Stable RLHF as a workflow: noisy human preferences in, a steadier policy out.

The subpackages are the repository's top-level folders: `trimtab/flows` is a link to `flows`, and so
on. So the folders lie where readers look first, and what is installed is one package, `trimtab`.
"""

from importlib import metadata

try:
    __version__ = metadata.version("trimtab")
except metadata.PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "unknown"
