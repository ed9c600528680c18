"""Property tests on a machine that does other work: no limit on the time of one example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rlvr", deadline=None, max_examples=50)
settings.load_profile("rlvr")
