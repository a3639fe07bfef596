# The race detector needs a C compiler; CGO_ENABLED is 1 if there is one.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

COMMIT ?= $(shell git describe --always --dirty --exclude "*" 2>/dev/null)

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

run: ## everything on this machine: Postgres, NATS, all functions, a demo sender, a webhook sink (Ctrl-C ends it)
	@scripts/run/build.sh env $(BUILD) && exec .sendonce/bin/run

example: ## an order and a points service that use a running make run: each paid order gives its points once (Ctrl-C ends it)
	@go build -o .sendonce/bin/example ./scripts/example && exec .sendonce/bin/example demo

booking: ## a booking confirmation through the fake WeChat of a running make run, submitted three times and sent once
	@go build -o .sendonce/bin/example ./scripts/example && exec .sendonce/bin/example booking

# Tests also wait for processes, so 12 of them run at once: this keeps two cores busy. With more at once, tests exceed
# timeouts on a slow machine. -vet=off: the target check has vetted the tests. -s -w: linking without symbols is a tenth
# faster. atexit_sleep_ms: by default, a process under the race detector sleeps for a second before it ends.
test: check ## format, vet, lint, then the tests on one private Postgres and meanwhile each fuzz target; TAGS=slow adds the slow tests
	@$(MAKE) --no-print-directory fuzz & fuzz=$$!; \
	go -C scripts/tools test && GORACE="atexit_sleep_ms=10 $$GORACE" go run ./scripts/test go test $(RACE) -tags='$(TAGS)' -vet=off -ldflags='-s -w' -p 2 -parallel 6 -timeout 900s ./... && \
	wait $$fuzz || { code=$$?; kill $$fuzz 2>/dev/null; exit $$code; }

# Function, package and number of inputs of each fuzz target. Each takes about 4 s on two cores while the tests run. An input that
# fails is written to testdata/fuzz of the package: commit it, so that every later run tests it. In Go 1.26 a FUZZTIME that is a
# duration, such as 10m, sometimes fails.
FUZZ := FuzzBodies:functions/e2e:600x FuzzQueries:functions/e2e:1600x FuzzKeys:functions/e2e:600x FuzzEvents:functions/e2e:800x \
	FuzzVerifyWebhook:shared/api:8000x FuzzSettings:shared/fn:1000x

fuzz: ## each fuzz target for about 4 s; FUZZTIME=1000000x sets the number of inputs
	@FUZZTIME=$(FUZZTIME) sh scripts/fuzz.sh $(FUZZ)

vuln: ## known vulnerabilities in the code of dependencies that is called; needs vuln.go.dev, or VULN='-db file:///a/copy'
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(VULN) ./...

# With the flags of go list in scripts/tools, so that make test compiles no package for both. The -gcflags of BUILD differ.
check: export CGO_ENABLED = 0
check: export GOFLAGS := $(shell go env GOFLAGS) -trimpath
check: ## format, vet and lint only
	@test -z "$$(gofmt -l */)" || { echo 'not formatted, run gofmt -w:'; gofmt -l */; exit 1; }
	go vet -tags=slow ./...
	GOGC=400 go tool staticcheck -tags=slow ./...

openapi: ## lint openapi.yaml, and compile a TypeScript client generated from it; needs Node.js with npm
	@sh scripts/openapi/check.sh

clients: openapi ## generate clients in TypeScript and Go from openapi.yaml, and run the examples of the docs with them against all functions
	@sh scripts/clients/run.sh
	SENDONCE_TYPESCRIPT_CLIENT=$(CURDIR)/.sendonce/openapi/dist/example.js SENDONCE_GO_CLIENT=$(CURDIR)/.sendonce/clients/client \
		go test -tags=slow -count=1 -run TestExamplesOfTheDocs ./functions/e2e

# With these settings the faults in tests last longer, and tests run that take too long for make test.
faults: ## the tests of functions and store with NATS down for 30 s, Postgres failing over, two idle minutes, and 200,000 messages waiting
	SENDONCE_FAULT_SECONDS=30 SENDONCE_IDLE_SECONDS=120 SENDONCE_WAITING_MESSAGES=200000 go test $(RACE) -tags=slow -count=1 -parallel 8 -timeout 900s ./functions/... ./shared/store/...

cluster: ## the tests of functions/e2e and NATS, and those in which servers of a cluster of three nats-servers are killed
	SENDONCE_CLUSTER=1 go test $(RACE) -tags=slow -count=1 -parallel 8 -timeout 600s ./functions/e2e ./shared/bus ./shared/trigger ./shared/sandbox

postgres-matrix: ## the tests of the migrations, the store and the functions on Postgres 14 to 18, from npm; MATRIX='-majors 14,18' picks
	@go build -o .sendonce/bin/matrix ./scripts/matrix && exec .sendonce/bin/matrix $(MATRIX)

attack: ## one caller makes 64 of the worst calls of each kind at once: memory of each function, latency of another caller
	SENDONCE_ATTACK_CALLS=64 go test -tags=slow -count=1 -timeout 900s -v -run TestMemoryStaysBounded ./functions/e2e

lists: ## the cost of frequent calls with a million tasks in the database, and of lists and statistics with a million subscribe messages
	SENDONCE_TASK_ROWS=1000000 go test -count=1 -timeout 600s -v -run HotCallsCostNoMoreThanBefore ./functions/e2e
	SENDONCE_LIST_ROWS=1000000 go test -count=1 -timeout 600s -v -run SubscribeQueriesReadFewBlocks ./shared/store/subscribe

compose-test: ## deploy/compose with podman, as root: services replaced and killed under load, nothing lost, nothing done twice
	@go build -o .sendonce/bin/compose ./scripts/compose && exec .sendonce/bin/compose $(COMPOSE_TEST)

rolling: ## the part of compose-test that replaces the functions under load, twice
	@go build -o .sendonce/bin/compose ./scripts/compose && exec .sendonce/bin/compose -rolling -rounds 2 $(ROLLING)

bench: ## rates and latencies over HTTP, in rounds with pgbench and River, about 3 minutes; BENCH='-svg plot.svg' for a plot
	@go build -o .sendonce/bin/rates ./scripts/bench/rates && exec .sendonce/bin/rates $(BENCH)

bench-scale: ## 1, 2 and 4 processes; claims with ten million finished tasks, an old transaction, or changing partitions: 30 minutes, 8 GB of disk
	@go build -o .sendonce/bin/scale ./scripts/bench/scale && exec .sendonce/bin/scale $(BENCH)

bench-two-phase: ## latency of accepted and saved messages, also while the database stalls, and how fast accepted messages are saved
	@go build -o .sendonce/bin/twophase ./scripts/bench/twophase && exec .sendonce/bin/twophase $(BENCH)

bench-cold: ## how long each function takes from its start to its first response, first query included, and its idle memory
	@go build -o .sendonce/bin/cold ./scripts/bench/cold && exec .sendonce/bin/cold $(BENCH)

# The linker drops DWARF data because of -w, and compiling is a tenth cheaper if it does not generate them.
BUILD = CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -ldflags '-s -w -X github.com/sendonce/sendonce/shared/fn.commit=$(COMMIT)'

build: ## the one binary, in bin/sendonce
	$(BUILD) -o bin/sendonce ./functions/sendonce

framework: ## the functions on the server of the functions framework, in bin/framework
	$(BUILD) -o bin/framework ./functions/framework

golden: ## rewrite the generated files: the settings in docs, compose's .env.example, the users of NATS, the alert rules for Knative
	go test ./functions -run TestDocs -update
	go test ./deploy -run 'TestExampleEnvironment|TestNATSUsers|TestKnativeRules' -update

.PHONY: help run example booking test fuzz vuln check openapi clients faults cluster attack lists postgres-matrix compose-test rolling bench bench-scale bench-two-phase bench-cold build framework golden
