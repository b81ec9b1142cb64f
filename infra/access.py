"""Limits of what a worker's run may read, and of which judges it may ask; the operator sets them.

TRIMTAB_DATA_ROOTS      what it may read: folders, s3://bucket/prefix, and hf://owner or
                        hf://owner/name for data sets and models of the hub; by commas
TRIMTAB_JUDGES          judges and reward servers that it may ask, https://host/v1=KEY by commas: an
                        address as in `base_url` or `url` and, if it wants a key, the environment
                        variable or Secret block that holds it
TRIMTAB_REWARD_FUNCTIONS  Python functions that it may call as a reward, package.module:function by
                        commas; what they are is code, which runs with the trainer's rights
TRIMTAB_JUDGE_NETWORKS  private networks (10.0.0.0/8) in which those judges' names may lie
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

# The kernel's own file systems: their files tell of processes, and no root opens them.
_NEVER = ("/proc", "/sys", "/dev")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[a-z0-9]+(-[a-z0-9]+)*")
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)

S3, HUB = "s3://", "hf://"


class AccessError(ValueError):
    """Something that a run may not read or ask, or a rule about it that cannot be understood."""


@dataclass(frozen=True)
class Access:
    """The places and judges that are allowed.

    folders: absolute, links resolved. objects: s3:// prefixes. hub: owners and owner/name. judges:
    the key's name, None without one, by address. networks: private ones. functions: of rewards.
    """

    folders: tuple[Path, ...] = ()
    objects: tuple[str, ...] = ()
    hub: tuple[str, ...] = ()
    judges: tuple[tuple[str, str | None], ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    functions: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Access:
        """Read the variables above. Raises AccessError."""
        roots = _entries(env, "TRIMTAB_DATA_ROOTS")
        local = [root for root in roots if "://" not in root]
        for root in roots:
            if not root.startswith(("/", S3, HUB)) or root in (S3, HUB):
                raise AccessError(
                    f"TRIMTAB_DATA_ROOTS names {root!r}; allowed: an absolute folder, "
                    "s3://bucket/prefix, hf://owner or hf://owner/name"
                )
        return cls(
            folders=tuple(Path(os.path.realpath(root)) for root in local),
            objects=tuple(root for root in roots if root.startswith(S3)),
            hub=tuple(root.removeprefix(HUB).strip("/") for root in roots if root.startswith(HUB)),
            judges=tuple(_judge(entry) for entry in _entries(env, "TRIMTAB_JUDGES")),
            networks=tuple(_network(text) for text in _entries(env, "TRIMTAB_JUDGE_NETWORKS")),
            functions=tuple(_entries(env, "TRIMTAB_REWARD_FUNCTIONS")),
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the judges' keys."""
        return tuple(key for _, key in self.judges if key is not None)

    @property
    def allowed_networks(self) -> tuple[str, ...]:
        """The private networks, and the addresses of judges that are named by number."""
        numbers = [_number(urlsplit(address).hostname or "") for address, _ in self.judges]
        return (*map(str, self.networks), *(number for number in numbers if number))

    def demand_file(self, source: str) -> None:
        """AccessError unless a file, a folder or an s3:// address may be read."""
        if not source.startswith(S3):
            self.demand_folder(source)
            return
        for root in self.objects:
            prefix = root.rstrip("/")
            # Servers that keep objects in folders may follow them.
            leads_out = {".", ".."} & set(source.split("/"))
            if not leads_out and (source == prefix or source.startswith(f"{prefix}/")):
                return
        raise AccessError(
            f"{source!r} may not be read; allowed are s3:// addresses in TRIMTAB_DATA_ROOTS of the "
            f"worker: {', '.join(self.objects) or 'none'}"
        )

    def demand_source(self, source: str, suffixes: tuple[str, ...]) -> None:
        """AccessError unless a data set may be read: a file (of `suffixes`), as above, or a hub's.

        `owner/name[/folder][:config]` of the hub.
        """
        if _is_local(source, suffixes):
            self.demand_file(source)
        else:
            self._demand_hub("/".join(source.partition(":")[0].split("/")[:2]), source)

    def demand_model(self, model: str) -> None:
        """AccessError unless a model may be read: a folder, or one of the hub.

        Every file of a folder must lie where files may be read, too, and name no others.
        """
        if not _is_local(model):
            self._demand_hub(model, model)
            return
        self.demand_folder(model)
        for place, folders, files in os.walk(os.path.expanduser(model)):
            for name in (*folders, *files):
                path = os.path.join(place, name)
                self.demand_folder(path)
                if os.path.islink(path) and os.path.isdir(path):
                    raise AccessError(f"{path!r} is a link to a folder, which a model may not hold")
                _demand_inner_names(path, name)

    def demand_folder(self, path: str) -> tuple[Path, Path]:
        """The folder allowed and the path in it, links resolved; AccessError where there is none.

        Forbidden and missing paths give the same message.
        """
        if "\0" not in path:
            written = os.path.expanduser(path)
            resolved = Path(os.path.realpath(written))
            # Both: /proc/self/root leads to anywhere.
            is_kernels = _is_kernels(resolved) or _is_kernels(Path(os.path.abspath(written)))
            for folder in self.folders:
                if resolved.is_relative_to(folder) and not is_kernels:
                    return folder, resolved.relative_to(folder)
        allowed = ", ".join(map(str, self.folders)) or "none"
        raise AccessError(
            f"the path {path!r} may not be read; allowed are those below TRIMTAB_DATA_ROOTS of the "
            f"worker: {allowed}"
        )

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """The descriptor of a file or folder that may be read, opened without following a link.

        The path is resolved first and then walked from the folder allowed, so that a link that
        somebody puts there meanwhile leads nowhere. Raises AccessError, and OSError.
        """
        folder, rest = self.demand_folder(path)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in rest.parts:
                inner = open_in(descriptor, part)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def demand_judge(self, address: str, key: str | None) -> None:
        """AccessError unless a judge may be asked, with the key of that name."""
        wanted = _address(address)
        if any(known == wanted and key in (name, None) for known, name in self.judges):
            return
        judges = ", ".join(f"{a} with {k or 'no key'}" for a, k in self.judges) or "none"
        way = f"with the key {key!r}" if key else "without a key"
        raise AccessError(
            f"{address!r} may not be asked {way}; allowed are the judges and reward servers in "
            f"TRIMTAB_JUDGES of the worker: {judges}"
        )

    def demand_function(self, name: str) -> None:
        """AccessError unless a function may be called as a reward."""
        if name not in self.functions:
            raise AccessError(
                f"the function {name!r} may not be called; allowed are those in "
                f"TRIMTAB_REWARD_FUNCTIONS of the worker: {', '.join(self.functions) or 'none'}"
            )

    def key_of(self, address: str) -> str | None:
        """The name of the key that a judge gets."""
        return dict(self.judges).get(_address(address))

    def _demand_hub(self, name: str, source: str) -> None:
        is_known = name in self.hub or name.partition("/")[0] in self.hub
        if not is_known or not _HUB_NAME.fullmatch(name) or ".." in source:
            allowed = ", ".join(HUB + entry for entry in self.hub) or "none"
            raise AccessError(
                f"{source!r} of the hub may not be read; allowed are hf:// entries in "
                f"TRIMTAB_DATA_ROOTS of the worker: {allowed}"
            )


def open_in(folder: int, name: str) -> int:
    """Open a file or folder by its name in an open folder, not through a link. Raises OSError.

    AccessError for what is neither, and for what lies in a file system of the kernel's.
    """
    # Not blocking: a pipe would be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(name, flags, dir_fd=folder)
    status = os.fstat(descriptor)
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if is_plain and status.st_dev not in {os.stat(path).st_dev for path in _NEVER}:
        return descriptor
    os.close(descriptor)
    raise AccessError(f"{name!r} is not a regular file or folder")


def _demand_inner_names(path: str, name: str) -> None:
    """AccessError for a file of a model by which its readers would open others, outside of it."""
    if name == "adapter_config.json":
        raise AccessError(
            f"{path!r} is of an adapter, whose base model lies elsewhere; allowed: merged weights"
        )
    if not (name.endswith(".index.json") or name == "modules.json"):
        return
    try:
        content = json.loads(Path(path).read_bytes())
        # Of safetensors and torch: tensor -> file. Of sentence-transformers: a list of modules.
        if isinstance(content, dict):
            inner = list(content["weight_map"].values())
        else:
            inner = [module["path"] for module in content]
        is_inside = not any(file.startswith("/") or ".." in file.split("/") for file in inner)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise AccessError(f"{path!r} is not a valid list of a model's files") from None
    if not is_inside:
        raise AccessError(f"{path!r} names files outside of its folder, which a model may not do")


def _is_local(name: str, suffixes: tuple[str, ...] = ()) -> bool:
    """Whether a name is a path or an address: by its looks, or because something is there."""
    looks = name.startswith(("/", ".", "~")) or "//" in name or name.lower().endswith(suffixes)
    return looks or "\0" in name or os.path.lexists(name)


def _is_kernels(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _NEVER)


def _entries(env: Mapping[str, str], name: str) -> list[str]:
    return [entry.strip() for entry in env.get(name, "").split(",") if entry.strip()]


def _judge(entry: str) -> tuple[str, str | None]:
    address, has_key, key = entry.partition("=")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise AccessError(
            f"TRIMTAB_JUDGES names {address!r}; allowed: https://host/v1=KEY, the name of an "
            "environment variable or of a Secret block behind it"
        )
    if has_key and not _KEY.fullmatch(key):  # it may be the key itself
        raise AccessError(f"TRIMTAB_JUDGES: what follows {address!r}= is not the name of a key")
    return _address(address), key or None


def _address(text: str) -> str:
    """An address in one spelling."""
    parts = urlsplit(text.strip())
    return parts._replace(netloc=parts.netloc.lower(), path=parts.path.rstrip("/")).geturl()


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise AccessError(
            f"TRIMTAB_JUDGE_NETWORKS names {text!r}; allowed: a network such as 10.0.0.0/8: {error}"
        ) from None


def _number(host: str) -> str | None:
    try:
        return str(ip_network(ip_address(host)))
    except ValueError:
        return None
