# What the consumer does, in bash. `handle` gets the type and the payload of a message; what it prints is the
# result, and its status says whether it went well. What it says on stderr is for people.
handle() {
  case $1 in
    invoice) jq -r '"printed invoice \(.order) over \(.total)"' <<<"$2" | tee /dev/stderr ;;
    email) send "$(jq -r .to <<<"$2")" "$(jq -r .subject <<<"$2")" ;;
    thumbnail) resize "$(jq -r .image <<<"$2")" "$(jq -r .seconds <<<"$2")" ;;
    *) echo "nobody here knows what a $1 is" >&2; return 1 ;;
  esac
}

send() {
  if [[ $1 != *@* ]]; then
    echo "cannot send to $1" >&2
    return 1
  fi
  echo "sent to $1: $2" | tee /dev/stderr
}

resize() {
  echo "resizing $1" >&2
  sleep "$2"
  echo "resized $1" | tee /dev/stderr
}
