"""Files of the log store: it cannot be run here, so that files are parsed, and their promises are checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.required import require_program

RESOURCES = Path(__file__).parents[2] / "resources"
FOLDER = RESOURCES / "logging" / "elk"
STACK = {"elasticsearch", "logstash", "kibana", "filebeat"}


COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_bounded_pinned_and_without_rights(name: str) -> None:
    """Limits of CPU and memory, a health check, one pinned version of all, no new privileges and no capability but that
    to read logs; logs of its own are bounded."""
    service = SERVICES[name]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert service["healthcheck"]["test"]
    assert re.fullmatch(r"docker\.elastic\.co/[\w/]+:8\.17\.4", service["image"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["DAC_READ_SEARCH"] if name == "filebeat" else [])
    assert service["logging"]["options"]["max-size"]
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


def test_the_four_are_there_and_none_has_its_security_switched_off() -> None:
    """TLS and accounts are on, and passwords come from files."""
    assert set(SERVICES) == {*STACK, "setup"}
    settings = SERVICES["elasticsearch"]["environment"]
    assert {key: settings[key] for key in settings if key.endswith("enabled") and "security" in key} == {
        "xpack.security.enabled": "true",
        "xpack.security.http.ssl.enabled": "true",
        "xpack.security.transport.ssl.enabled": "true",
    }
    text = "".join(path.read_text("utf-8") for path in FOLDER.rglob("*") if path.suffix in (".yaml", ".yml", ".conf"))
    assert "http://elasticsearch" not in text
    assert not re.search(r"verification_mode:? *=?>? *.?none|ssl_verification_mode.*none", text)
    for line in re.sub(r"^ *#.*$", "", text, flags=re.MULTILINE).splitlines():
        secret = re.search(r"(?i)password(?:_FILE)?[\"']?\s*(?::|=>)\s*(\S+)", line)
        assert secret is None or secret[1].startswith(("/run/secrets/", '"${', "{file:", "${")), line
    for name in ("elastic_password", "kibana_password", "shipper_password", "kibana_key"):
        assert COMPOSE["secrets"][name] == {"file": f"./secrets/{name}"}
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])


def test_ports_that_need_no_network_are_on_this_machine_alone() -> None:
    """The store and the input of Filebeat are reached from elsewhere, with TLS; pages and counters are not."""
    ports = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert ports == {
        "elasticsearch": ["9200:9200"],
        "setup": [],
        "logstash": ["5044:5044", "127.0.0.1:9600:9600"],
        "kibana": ["127.0.0.1:5601:5601"],
        "filebeat": [],
    }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder with secrets, as its script makes them; running it again changes nothing."""
    require_program("openssl")
    copy = tmp_path_factory.mktemp("elk") / "elk"
    shutil.copytree(FOLDER, copy)
    script = copy / "setup" / "secrets.sh"
    subprocess.run([script, "logs.example.org"], check=True, capture_output=True)
    before = {path: path.read_bytes() for path in (copy / "secrets").rglob("*") if path.is_file()}
    subprocess.run([script], check=True, capture_output=True)
    assert {path: path.read_bytes() for path in (copy / "secrets").rglob("*") if path.is_file()} == before
    return copy


def test_every_file_that_the_stack_refers_to_is_there(prepared: Path) -> None:
    """Mounts, secrets, and certificates by the names that configurations use."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("/var/") or (prepared / source).exists(), source
    for secret in COMPOSE["secrets"].values():
        assert (prepared / secret["file"]).stat().st_mode & 0o777 == 0o600
    for path in ("compose.yaml", "logstash/pipeline/probe.conf", "filebeat/filebeat.yml"):
        for name in re.findall(r"certificates/(\w+\.\w+)", (FOLDER / path).read_text("utf-8")):
            assert (prepared / "secrets" / "certificates" / name).exists(), (path, name)


@pytest.mark.parametrize("name", sorted(STACK))
def test_certificates_are_those_of_the_services(prepared: Path, name: str) -> None:
    """Each is signed by the authority, for the service's name and those that were named; its key fits."""
    folder = prepared / "secrets" / "certificates"
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    for host in (name, "logs.example.org"):
        command = ["openssl", "verify", "-CAfile", str(folder / "ca.crt"), "-verify_hostname", host]
        subprocess.run([*command, str(folder / f"{name}.crt")], check=True, capture_output=True)
    assert (folder / f"{name}.key").stat().st_mode & 0o077 == 0


def test_documents_are_mapped_kept_for_thirty_days_and_found_by_their_template() -> None:
    """Retention, pipeline and mappings that the template names are those that the setup makes."""
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in (FOLDER / "elasticsearch").glob("*.json")}
    assert set(files) == {"role", "retention", "mappings", "index_template", "ingest_pipeline"}
    setup = (FOLDER / "setup" / "setup.sh").read_text("utf-8")
    template = files["index_template"]
    settings = template["template"]["settings"]
    for place, name, file in (
        ("_ilm/policy", settings["index.lifecycle.name"], "retention"),
        ("_ingest/pipeline", settings["index.default_pipeline"], "ingest_pipeline"),
        ("_component_template", template["composed_of"][0], "mappings"),
        ("_index_template", "probe-logs", "index_template"),
    ):
        assert f'PUT {place}/{name} @"$files/elasticsearch/{file}.json"' in setup
    assert files["retention"]["policy"]["phases"]["delete"] == {"min_age": "30d", "actions": {"delete": {}}}
    assert "data_stream" in template
    assert template["index_patterns"] == files["role"]["indices"][0]["names"] == ["logs-probe.*-*"]
    assert set(files["role"]["indices"][0]["privileges"]) == {"create_doc", "auto_configure"}


@pytest.mark.parametrize("status", [200, 401])
def test_setup_sends_its_files_by_tls_and_ends_if_one_is_refused(prepared: Path, tmp_path: Path, status: int) -> None:
    """To a server with the certificate of Elasticsearch: each file as it is, users with their passwords, as the
    superuser; and it is not done before all are accepted."""
    received: list[tuple[str, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            assert self.headers["Authorization"] == "Basic " + b64encode(f"elastic:{password}".encode()).decode()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.command, self.path, body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_PUT  # noqa: N815 - the name is http.server's

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    require_program("curl")
    secrets = prepared / "secrets"
    password = (secrets / "elastic_password").read_text()
    shutil.copy(secrets / "certificates" / "ca.crt", prepared)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*(secrets / "certificates" / f"elasticsearch.{end}" for end in ("crt", "key")))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        where = {"ELASTICSEARCH": f"https://127.0.0.1:{server.server_port}", "SECRETS": str(secrets)}
        environment = {**os.environ, **where, "FILES": str(prepared), "DONE": str(tmp_path / "done")}
        ended = subprocess.run(
            ["bash", prepared / "setup" / "setup.sh"], check=False, env=environment, capture_output=True, text=True
        )
        server.shutdown()
        thread.join()
    assert password not in ended.stdout + ended.stderr
    assert (ended.returncode == 0, (tmp_path / "done").exists()) == (status == 200, status == 200), ended.stderr
    if status == 200:
        bodies = {path: body for _, path, body in received}
        sent = [body for body in bodies.values() if "password" not in body]
        stored = [json.loads(path.read_text("utf-8")) for path in (FOLDER / "elasticsearch").glob("*.json")]
        assert sorted(map(str, sent)) == sorted(map(str, stored))
        shipper = {"password": (secrets / "shipper_password").read_text(), "roles": ["probe_shipper"]}
        assert bodies["/_security/user/probe-shipper"] == shipper
    else:
        assert len(received) == 1


def flat(fields: dict[str, Any], above: str = "") -> set[str]:
    """Names of mapped fields, with dots."""
    found = set()
    for name, field in fields.items():
        inner = field.get("properties")
        found |= flat(inner, f"{above}{name}.") if inner else {above + name}
    return found


def test_every_field_that_rsyslog_writes_is_mapped() -> None:
    """By name, or as a label; otherwise the first document would decide its type."""
    conf = (RESOURCES / "logging" / "rsyslog" / "probe.conf").read_text("utf-8")
    written = set(re.findall(r'outname="([^"]+)"', conf))
    mappings = json.loads((FOLDER / "elasticsearch" / "mappings.json").read_text("utf-8"))["template"]["mappings"]
    free = {"labels.pci_address", "agent.type", "ecs.version"}
    assert written - flat(mappings["properties"]) == free
    assert {"message", "log.offset", "process.pid"} <= written


def test_pipelines_lead_from_filebeat_to_the_data_streams() -> None:
    """Both sides of a connection agree on port and certificates; each input has a data stream; queues are on disk."""
    filebeat = yaml.safe_load((FOLDER / "filebeat" / "filebeat.yml").read_text("utf-8"))
    logstash = yaml.safe_load((FOLDER / "logstash" / "config" / "logstash.yml").read_text("utf-8"))
    pipeline = (FOLDER / "logstash" / "pipeline" / "probe.conf").read_text("utf-8")
    assert pipeline.count("{") == pipeline.count("}")
    assert filebeat["output.logstash"]["hosts"] == ["logstash:5044"]
    assert "port => 5044" in pipeline
    assert 'ssl_client_authentication => "required"' in pipeline
    assert set(filebeat["output.logstash"]) >= {"ssl.certificate", "ssl.key", "ssl.certificate_authorities"}
    inputs = filebeat["filebeat.inputs"]
    assert len({each["id"] for each in inputs}) == len(inputs)
    conf = (RESOURCES / "logging" / "rsyslog" / "probe.conf").read_text("utf-8")
    assert {each["fields"]["event.dataset"] for each in inputs} == set(re.findall(r'"(probe\.(?!counters)\w+)";', conf))
    assert logstash["queue.type"] == "persisted"
    assert logstash["dead_letter_queue.enable"] is True
    assert filebeat["queue.disk"]["max_size"]


def test_telegraf_reads_the_exporters_and_has_no_secret() -> None:
    """Addresses of the exporters; the token comes from the environment."""
    tomllib = pytest.importorskip("tomllib")
    found = tomllib.loads((RESOURCES / "influxdb" / "telegraf.conf").read_text("utf-8"))
    (scrape,), (store,) = found["inputs"]["prometheus"], found["outputs"]["influxdb_v2"]
    assert [url.rpartition(":")[2] for url in scrape["urls"]] == ["9445/metrics", "9100/metrics"]
    assert all(value.startswith("${") for value in (store["token"], *store["urls"], store["bucket"]))
