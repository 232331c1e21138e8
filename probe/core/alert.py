"""InternEvo's messages to Feishu, and its heartbeats; ``probe.core.internevo`` has the parts."""

from probe.core.internevo.configuration import InternEvoConfigError, MonitorAlertSection, read_monitor_config
from probe.core.internevo.feishu_message import FeishuResponse, send_feishu_msg_with_webhook
from probe.core.internevo.light_monitor import initialize_light_monitor, send_heartbeat

__all__ = [
    "FeishuResponse",
    "InternEvoConfigError",
    "MonitorAlertSection",
    "initialize_light_monitor",
    "read_monitor_config",
    "send_feishu_msg_with_webhook",
    "send_heartbeat",
]
