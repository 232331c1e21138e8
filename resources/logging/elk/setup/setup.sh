#!/bin/bash
# Users, retention, ingest pipeline and index template of the logs. It can run again: each is replaced by itself.
set -euo pipefail
address="${ELASTICSEARCH:-https://elasticsearch:9200}"
secrets="${SECRETS:-/run/secrets}"
files="${FILES:-/setup}"
elastic="$(cat "$secrets/elastic_password")"

request() {  # METHOD PATH BODY: the password comes by a file descriptor, and so is in no list of processes
    curl --silent --show-error --fail-with-body --cacert "$files/ca.crt" --request "$1" \
        --config <(printf 'user = "elastic:%s"\n' "$elastic") \
        --header "Content-Type: application/json" --data-binary "$3" "$address/$2" > /dev/null
}

request POST _security/user/kibana_system/_password @<(printf '{"password": "%s"}' "$(cat "$secrets/kibana_password")")
request PUT _security/role/probe_shipper @"$files/elasticsearch/role.json"
request PUT _security/user/probe-shipper \
    @<(printf '{"password": "%s", "roles": ["probe_shipper"]}' "$(cat "$secrets/shipper_password")")
request PUT _ilm/policy/probe-logs @"$files/elasticsearch/retention.json"
request PUT _ingest/pipeline/probe-logs @"$files/elasticsearch/ingest_pipeline.json"
request PUT _component_template/probe-logs-mappings @"$files/elasticsearch/mappings.json"
request PUT _index_template/probe-logs @"$files/elasticsearch/index_template.json"
touch "${DONE:-/tmp/done}"
