"""Readings of devices and of the machine, taken in a process of its own: a call of a driver may never return.

``python -m probe.services.exporter.readings SOURCE INTERVAL DEADLINE`` writes one line of JSON for each reading::

    {"series": [["gpu_power_usage_watts", {"gpu_id": "0", "gpu_name": "...", "gpu_uuid": "..."}, 350.0]],
     "devices": 1, "unreadable": 0, "processes": {"4711": ["GPU-..."]}, "note": ""}

Names and labels are those of :mod:`probe.services.exporter.readings.catalogue`. The process ends with its standard
input.
"""
