# An agent that runs inside a container and needs nothing but bash: it asks its model twice, then does its task.
address=${OPENAI_BASE_URL#http://}
host=${address%%/*} path=/${address#*/}
for question in "What is two plus two?" "Name a colour."; do
  body='{"model": "tiny", "messages": [{"role": "user", "content": "'$question'"}]}'
  exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
  printf 'POST %s/chat/completions HTTP/1.0\r\nHost: model\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "$path" "${#body}" "$body" >&3
  answer=$(cat <&3)
  exec 3>&-
  [[ $answer == *'"content"'* ]] || exit 9
done
echo hello > /app/word.txt
