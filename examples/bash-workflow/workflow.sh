#!/usr/bin/env bash
# A workflow in bash, over HTTP: two pictures are resized side by side, then an album is published from both results,
# and an event tells whoever waits for it.
#
#   HOLDFAST_API=http://127.0.0.1:7717 HOLDFAST_TOKEN=hf_… ./workflow.sh
#
# Kill it whenever you like and start it again with `work`: what is done stays done, and the rest goes on.
set -eu

api=${HOLDFAST_API:-http://127.0.0.1:7717}
worker=bash-$(hostname)-$$

# call METHOD PATH [JSON]: prints the answer, and fails for every status that is not a success.
call() {
  curl --silent --show-error --fail-with-body --retry 5 --retry-connrefused --request "$1" "$api$2" \
    --header 'Content-Type: application/json' ${HOLDFAST_TOKEN:+--header "Authorization: Bearer $HOLDFAST_TOKEN"} \
    ${3:+--data "$3"}
}

# All jobs are stored, or none. The third waits for the first two, and its payload gets their results. While the workflow
# with this key is live, another start stores nothing: so curl may send it again if the answer was lost.
start() {
  call POST /v1/workflows '{"name": "album", "key": "holiday", "jobs": [
    {"kind": "resize", "queue": "images", "payload": {"file": "a.png"}},
    {"kind": "resize", "queue": "images", "payload": {"file": "b.png"}},
    {"kind": "publish", "queue": "images", "after": [1, 2], "take": {"files": "all"}}]}' |
    jq -r 'if .created then "started with \(.jobs | length) jobs" else "already started" end'
}

# The work: gets the kind and the payload, prints the result as JSON.
handle() {
  case $1 in
    resize) jq -c '.file | sub(".png"; "-small.png")' <<<"$2" ;;
    publish)
      call POST /v1/events "$(jq -c '{name: "published", key: "album", payload: .files}' <<<"$2")" >/dev/null
      jq -c '.files | length' <<<"$2"
      ;;
  esac
}

# Claims one job after another until there is none; a lease that is lost is told by the answer to the ack.
work() {
  while :; do
    claimed=$(call POST /v1/claims "{\"worker\": \"$worker\", \"queues\": [\"images\"], \"lease\": 10, \"wait\": 1}")
    lease=$(jq -c '.leases[0] // empty' <<<"$claimed")
    [ -n "$lease" ] || return 0
    id=$(jq -r .id <<<"$lease") kind=$(jq -r .kind <<<"$lease")
    token=$(jq -r .token <<<"$lease")
    if result=$(handle "$kind" "$(jq -c .payload <<<"$lease")"); then
      call POST "/v1/jobs/$id/ack" "{\"token\": \"$token\", \"result\": $result}" | jq -r --arg kind "$kind" '"\($kind) \(.outcome // .state)"'
    else
      call POST "/v1/jobs/$id/nack" "{\"token\": \"$token\", \"error\": \"it failed\"}" >/dev/null
    fi
  done
}

case ${1:-all} in
  start) start ;;
  work) work ;;
  all) start && work ;;
esac
