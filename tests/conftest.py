"""Property tests on a machine that does other work: no limit on the time of one example. Ray asks for a token."""

from __future__ import annotations

import os

from hypothesis import settings

# Ray reads it when it is imported, which some test module does first.
os.environ["RAY_AUTH_MODE"] = "token"

settings.register_profile("rlvr", deadline=None, max_examples=50)
settings.load_profile("rlvr")
