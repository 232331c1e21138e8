"""Module path by which the oldest scripts run :mod:`probe.core.anomaly_processor`."""

import sys

from probe.core.analysis.anomaly_processor import main

if __name__ == "__main__":
    sys.exit(main())
