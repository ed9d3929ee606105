#!/bin/sh
# The HTTP APIs with curl: sh examples/curl.sh [host:port]. --no-buffer shows tokens as they come.
at="http://${1:-127.0.0.1:8080}"

echo "--- OpenAI, streamed"
curl --silent --no-buffer "$at/v1/chat/completions" --json \
  '{"model": "llm", "messages": [{"role": "user", "content": "Name a river."}], "stream": true, "max_tokens": 16}'

echo "--- OpenAI, whole"
curl --silent "$at/v1/completions" --json '{"model": "llm", "prompt": "A river is", "max_tokens": 8}'
echo

echo "--- Triton, streamed"
curl --silent --no-buffer "$at/v2/models/llm/generate_stream" \
  -d '{"text_input": "A river is", "stream": true, "parameters": {"max_tokens": 8}}'
