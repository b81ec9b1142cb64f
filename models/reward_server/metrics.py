"""What the server counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """Counters of one server, all with the prefix `trimtab_reward_`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        prefix: Any = {"namespace": "trimtab", "subsystem": "reward", "registry": self._registry}
        self.requests = Counter(
            "requests", "Requests answered, by format and status", ("format", "status"), **prefix
        )
        self.refused = Counter(
            "refused",
            "Requests refused, by reason: full, key, host, size, body",
            ("reason",),
            **prefix,
        )
        self.latency = Histogram(
            "latency_seconds", "From a request to its scores", buckets=SECONDS, **prefix
        )
        self.batch_texts = Histogram("batch_texts", "Texts of a batch", buckets=TEXTS, **prefix)
        self.batch_tokens = Histogram("batch_tokens", "Tokens of a batch", buckets=TOKENS, **prefix)
        self.batch_seconds = Histogram(
            "batch_seconds", "Seconds that a batch was computed", buckets=SECONDS, **prefix
        )
        self._prefix = prefix

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A number that is asked for when it is read."""
        Gauge(name, text, **self._prefix).set_function(value)

    def observe_batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Of every batch; the sums of these histograms are all texts and tokens."""
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
