# An agent that needs nothing but bash: it asks its model twice, runs the answer as a command, and leaves an answer.
address=${OPENAI_BASE_URL#http://}
host=${address%%/*} path=/${address#*/}
ask() {
  body='{"model": "m", "messages": [{"role": "user", "content": "'$1'"}]}'
  exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
  printf 'POST %s/chat/completions HTTP/1.0\r\nHost: model\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "$path" "${#body}" "$body" >&3
  said=$(cat <&3)
  exec 3>&-
  said=${said#*\"content\":\"}
  printf '%s' "${said%%\"*}"
}
grep -q '"prompt"' "$ROLLBOOK_TASK" || exit 9
[ -z "$SECRET_OF_THE_HOST" ] || exit 8
eval "$(ask first)"
eval "$(ask second)"
if (exec 4<>/dev/tcp/192.0.2.1/80) 2>/dev/null; then exit 7; fi
printf done > "$ROLLBOOK_ANSWER"
