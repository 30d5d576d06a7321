"""Puts tests/ on the import path, so that tests share what lies in tests/support; machines under load are slow."""

import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

with suppress(ImportError):  # the environments of the big parts do without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
