#!/usr/bin/env bash
# A consumer in bash, by the routes and words of Relay: dequeues a message, runs `handle`, touches the lock while
# that runs, and acknowledges the message or gives it back.
#
#   HOLDFAST_API=http://127.0.0.1:7717 HOLDFAST_TOKEN=hf_… HANDLERS=handlers.sh ./consumer.sh shop
set -u

api=${HOLDFAST_API:-http://127.0.0.1:7717}
queue=${1:-default}
consumer=bash-$(hostname)-$$
timeout=${WAIT:-20}
seconds=${LEASE:-30}
# shellcheck source=/dev/null
. "$HANDLERS"

# call METHOD PATH JSON: prints the answer, and fails for every status that is no success.
call() {
  curl --silent --show-error --fail-with-body --max-time 60 --request "$1" "$api$2" \
    --header 'Content-Type: application/json' ${HOLDFAST_TOKEN:+--header "Authorization: Bearer $HOLDFAST_TOKEN"} \
    --data "$3" --retry 5 --retry-connrefused
}

# dequeue: prints one message, or fails with an empty answer when there is none within the timeout.
dequeue() {
  curl --silent --fail --max-time $((${timeout%.*} + 30)) --get "$api/queue/message" --header 'X-Requested-With: curl' \
    ${HOLDFAST_TOKEN:+--header "Authorization: Bearer $HOLDFAST_TOKEN"} --data-urlencode "queue=$queue" \
    --data-urlencode "consumerId=$consumer" --data "timeout=$timeout" --data "ackTimeout=$seconds"
}

# Touches the lock at a third of its length, until the work is done or the lock is lost: then the work ends.
hold() {
  while sleep $((seconds / 3 > 0 ? seconds / 3 : 1)); do
    call PUT "/queue/message/$1/touch" "{\"lock_token\": \"$2\", \"extend_seconds\": $seconds}" >/dev/null || break
  done
  kill "$3" 2>/dev/null
}

run() {
  local id=$1 token=$2 type=$3 payload=$4 work keeper status
  handle "$type" "$payload" >/dev/null &
  work=$!
  hold "$id" "$token" "$work" &
  keeper=$!
  wait "$work"
  status=$?
  kill "$keeper" 2>/dev/null
  if [ "$status" -eq 0 ]; then
    call POST "/queue/message/$id/ack" "{\"lock_token\": \"$token\"}"
  else
    call POST "/queue/message/$id/nack" "{\"lock_token\": \"$token\", \"errorReason\": \"exit status $status\"}"
  fi >/dev/null || echo "message $id: the lock is lost, or the server is away" >&2
}

while :; do
  if ! message=$(dequeue); then
    sleep 0.2 # there was none, or the server is away
    continue
  fi
  IFS=$'\t' read -r id token type payload \
    < <(jq -r '[.id, .lock_token, .type // "", (.payload | tojson)] | join("\t")' <<<"$message")
  run "$id" "$token" "$type" "$payload"
done
