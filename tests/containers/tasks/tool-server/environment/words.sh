#!/bin/bash
# An MCP server in plain bash: one tool, which knows a word for every colour.
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
schema='{"type":"object","properties":{"colour":{"type":"string"}},"required":["colour"]}'
while IFS= read -r line; do
  [[ $line =~ \"id\":([0-9]+|\"[^\"]*\") ]] && id=${BASH_REMATCH[1]} || continue
  case $line in
    *'"method":"initialize"'*)
      [[ $line =~ \"protocolVersion\":\"([^\"]*)\" ]]
      answer "{\"protocolVersion\":\"${BASH_REMATCH[1]}\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"words\",\"version\":\"1\"}}" ;;
    *'"method":"tools/list"'*)
      answer "{\"tools\":[{\"name\":\"word_of\",\"description\":\"Return the word of a colour.\",\"inputSchema\":$schema}]}" ;;
    *'"method":"tools/call"'*)
      [[ $line =~ \"colour\":\"([^\"]*)\" ]]
      answer "{\"content\":[{\"type\":\"text\",\"text\":\"${BASH_REMATCH[1]}-$(id -un)-$1\"}]}" ;;
    *) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}\n' "$id" ;;
  esac
done
