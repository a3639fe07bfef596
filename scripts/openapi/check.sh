#!/bin/sh
# Lints openapi.yaml with two linters, generates a TypeScript client from it, and compiles the client and an example in
# strict mode. Warnings are errors, too. Everything is installed below .sendonce/openapi: ./... of go skips directories whose
# name starts with a dot.
set -eu
cd "$(dirname "$0")/../.."
for tool in node npm; do
  command -v "$tool" >/dev/null || { echo "make openapi needs $tool: install Node.js 20.19 or later with npm" >&2; exit 1; }
done
dir=.sendonce/openapi
mkdir -p "$dir"
cp scripts/openapi/*.json scripts/openapi/*.yaml scripts/openapi/.spectral.yaml functions/console/apidocs/examples/example.ts shared/api/openapi.yaml "$dir"
cd "$dir"
cmp -s package-lock.json node_modules/.installed || {
  npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
  cp package-lock.json node_modules/.installed
}
PATH=$PWD/node_modules/.bin:$PATH REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true
export PATH REDOCLY_TELEMETRY REDOCLY_SUPPRESS_UPDATE_NOTICE
redocly lint openapi.yaml --config redocly.yaml --format=stylish
spectral lint openapi.yaml --fail-severity=hint
openapi-typescript openapi.yaml -o api.d.ts
tsc -p tsconfig.json
echo "the generated client and the example compile with tsc --strict"
