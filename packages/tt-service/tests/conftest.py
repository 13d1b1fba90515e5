"""Makes `tt_service_house` known to these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
