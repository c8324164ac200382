"""`benchmarks` is run from the checkout and not installed, so its tests find it by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
