from __future__ import annotations

from hypothesis import settings

# No wall time in unit tests: a busy machine must not fail them.
settings.register_profile("sluiceway", deadline=None)
settings.load_profile("sluiceway")
