"""Write the dashboards and the alerts of Grafana: ``python resources/grafana/make.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import yaml  # noqa: E402 - the folder is no package
from boards.alerts import provisioning  # noqa: E402
from boards.board import dashboard_of  # noqa: E402
from boards.cluster import CLUSTER_BOARD  # noqa: E402
from boards.job import JOB_BOARD  # noqa: E402
from boards.layers import LAYERS_BOARD  # noqa: E402
from boards.ranks import RANKS_BOARD  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402

BOARDS = (CLUSTER_BOARD, JOB_BOARD, LAYERS_BOARD, RANKS_BOARD)
NOTE = "# Made by resources/grafana/make.py: /etc/grafana/provisioning/alerting/probe.yml\n"


def files() -> dict[Path, str]:
    """Return the text of each file by its path."""
    made = {
        HERE / "dashboards" / f"{board.name}.json": json.dumps(dashboard_of(board), cls=JSONEncoder, indent=2) + "\n"
        for board in BOARDS
    }
    alerts = NOTE + yaml.safe_dump(provisioning(), sort_keys=False, allow_unicode=True, width=120)
    return made | {HERE / "provisioning" / "alerting" / "probe.yml": alerts}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
