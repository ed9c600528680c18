"""What all tests need of their process: tokens for Ray, interrupts that arrive, property tests without deadlines."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Ray reads it when it is imported, which some test module does first.
os.environ["RAY_AUTH_MODE"] = "token"

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a machine that does other work an example takes as long as it takes.
settings.register_profile("rlvr", deadline=None, max_examples=50)
settings.load_profile("rlvr")
