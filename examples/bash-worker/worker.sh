#!/usr/bin/env bash
# A worker in bash: claims a job over HTTP, runs `handle`, holds the lease while that runs, and ends it.
#
#   HOLDFAST_API=http://127.0.0.1:7717 HOLDFAST_TOKEN=hf_… ./worker.sh mail
#
# SIGTERM lets it finish the job it is at. Kill it whenever you like: what it held is given to somebody else when
# the lease ends.
set -u

api=${HOLDFAST_API:-http://127.0.0.1:7717}
queue=${1:-default}
worker=bash-$(hostname)-$$
lease=${LEASE:-30}
wait=${WAIT:-20}

# The work. Gets the kind and the payload; what it prints is the result, a failure is told by its status.
handle() {
  echo "worked on $1: $2" >&2
  sleep "$(jq -r '.seconds? // 0' <<<"$2")"
}
# shellcheck source=/dev/null
[ -f "${HANDLERS:-}" ] && . "$HANDLERS"

# call METHOD PATH JSON: prints the answer, and fails for every status that is no success.
call() {
  curl --silent --show-error --fail-with-body --max-time $((${wait%.*} + 30)) --request "$1" "$api$2" \
    --header 'Content-Type: application/json' ${HOLDFAST_TOKEN:+--header "Authorization: Bearer $HOLDFAST_TOKEN"} \
    --data "$3" "${@:4}"
}
# An answer that was lost is asked for again: ending a lease twice is ending it once.
again=(--retry 5 --retry-connrefused)

# Touches the lease at a third of its length, until the work is done or the lease is lost: then the work ends.
hold() {
  while sleep $((lease / 3 > 0 ? lease / 3 : 1)); do
    call PUT "/v1/jobs/$1/touch" "{\"token\": \"$2\", \"lease\": $lease}" "${again[@]}" >/dev/null || break
  done
  kill "$3" 2>/dev/null
}

run() {
  local id=$1 token=$2 kind=$3 payload=$4 result work keeper status
  result=$(mktemp)
  handle "$kind" "$payload" >"$result" &
  work=$!
  hold "$id" "$token" "$work" &
  keeper=$!
  # A signal interrupts the waiting, not the work.
  while wait "$work"; status=$?; [ "$status" -gt 128 ] && kill -0 "$work" 2>/dev/null; do :; done
  kill "$keeper" 2>/dev/null
  if [ "$status" -eq 0 ]; then
    call POST "/v1/jobs/$id/ack" "$(jq -nc --arg token "$token" --rawfile out "$result" '{token: $token, result: $out}')" "${again[@]}"
  else
    call POST "/v1/jobs/$id/nack" \
      "$(jq -nc --arg token "$token" --arg told "exit status $status" '{token: $token, error: {kind: "Exit", message: $told}}')" "${again[@]}"
  fi >/dev/null || echo "job $id: the lease is lost, or the server is away" >&2
  rm -f "$result"
}

stopping=
trap 'stopping=1' TERM INT
while [ -z "$stopping" ]; do
  wanted=$(jq -nc --arg worker "$worker" --arg queue "$queue" --argjson lease "$lease" --argjson wait "$wait" \
    '{worker: $worker, queues: [$queue], lease: $lease, wait: $wait}')
  if ! answer=$(call POST /v1/claims "$wanted"); then
    [ -z "$stopping" ] && sleep 2 # the server is away, or says why in its answer
    continue
  fi
  [ "$(jq -r '.stop // false' <<<"$answer")" = true ] && exit 0
  while IFS=$'\t' read -r id token kind payload; do
    run "$id" "$token" "$kind" "$payload"
  done < <(jq -r '.leases[] | [.id, .token, .kind, (.payload | tojson)] | join("\t")' <<<"$answer")
done
