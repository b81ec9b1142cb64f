"""What holds for every test."""

from __future__ import annotations

import signal

# A script that starts the tests with `&` leaves SIGINT ignored, for them and their children, so
# that no test of an interruption could pass.
signal.signal(signal.SIGINT, signal.default_int_handler)
