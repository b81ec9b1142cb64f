"""What a process needs before it runs a flow: settings, Prefect's environment, the home folder."""

from __future__ import annotations

import os

from trimtab.infra.settings import Settings, SettingsError


def load_settings(*, makes_home: bool = True) -> Settings:
    """Read the settings and set Prefect's environment; create the home folder if `makes_home`.

    Prefect's files go below the home folder, and its telemetry is off: this must run before Prefect
    is imported. Variables that are already set stay.
    """
    settings = Settings.from_env()
    for name, value in {
        "PREFECT_HOME": str(settings.home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "trimtab",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)
    if makes_home:
        make_home(settings)
    return settings


def make_home(settings: Settings) -> None:
    """Create the home folder; SettingsError where it cannot be written."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(settings.home, os.W_OK | os.X_OK) else "no permission to write"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise SettingsError(
            f"TRIMTAB_HOME is {settings.home}, which cannot be written ({problem}); allowed: a "
            "folder that exists, or can be created, and that you may write to"
        )
