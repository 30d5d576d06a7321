"""Puts tests/ on the import path, so that tests share what lies in tests/support."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
