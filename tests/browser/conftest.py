"""What serves a page to Chromium stands with the benchmarks, which are no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
