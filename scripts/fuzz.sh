#!/bin/sh
# Runs the fuzz targets in its arguments: function:package:number of inputs, such as FuzzKeys:functions/e2e:600x. Each package is
# compiled once. If FUZZTIME is set, it replaces the number of inputs of each target.
set -eu
out=$PWD/.sendonce/fuzz
mkdir -p "$out"
for target in "$@"; do
	name=${target%%:*} inputs=${target##*:} package=${target#*:}
	package=${package%:*}
	binary=$out/$(echo "$package" | tr / -).test
	case " ${built:-} " in *" $package "*) ;; *)
		nice go test -vet=off -c -fuzz . -o "$binary" "./$package"
		built="${built:-} $package" ;;
	esac
	# 100x: Go tries at most 100 times to minimize an input that reached new code; by default, for up to a minute.
	if ! (cd "$package" && nice "$binary" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "${FUZZTIME:-$inputs}" -test.fuzzminimizetime 100x \
		-test.parallel 1 -test.fuzzcachedir "$(go env GOCACHE)/fuzz/$(go list .)") >"$out/$name" 2>&1; then
		cat "$out/$name"
		exit 1
	fi
	echo "fuzz $name: $(grep -o 'elapsed: [0-9ms]*, execs: [0-9]*' "$out/$name" | tail -1)"
done
