#!/bin/sh
# Generates a Go client from openapi.yaml and compiles an example with it. Both are below .sendonce/clients, so that the
# repository does not contain the generated client.
set -eu
cd "$(dirname "$0")/../.."
dir=.sendonce/clients
mkdir -p "$dir/sendonce"
cp scripts/clients/*.go scripts/clients/*.yaml scripts/clients/go.mod scripts/clients/go.sum shared/api/openapi.yaml "$dir"
cd "$dir"
go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config oapi-codegen.yaml openapi.yaml
CGO_ENABLED=0 go build -o client .
echo "the generated Go client and its example compile"
