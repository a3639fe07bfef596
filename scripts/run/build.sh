#!/bin/sh
# Builds the two programs of make run, scripts/run and the functions, and prints the progress. The arguments are the build
# command, with the flags of make build. One command builds both programs, so that nothing is compiled twice.
set -eu
mkdir -p .sendonce/bin
packages=$(CGO_ENABLED=0 go list -deps ./scripts/run ./functions/sendonce | wc -l)
echo "build     $packages packages; from an empty cache this takes about a minute"
{ "$@" -v -o .sendonce/bin/ ./scripts/run ./functions/sendonce 2>&1 || echo "build failed"; } | awk -v all="$packages" '
	/^build failed$/ { failed = 1; next }
	/^#/ || /:[0-9]+:[0-9]+:/ || /^go: / && !/^go: downloading/ || /[ \t]/ && !/^go: downloading/ { print; next } # errors
	/^go: downloading/ { if (++fetched % 20 == 1) { print "          fetching modules: " $3; fflush() }; next }
	{ if (++done % 50 == 0) { print "          compiled " done " of " all " packages"; fflush() } }
	END { exit failed }'
