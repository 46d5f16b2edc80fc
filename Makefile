# make run    build, and evaluate a lab on this machine
# make test   everything that must hold: make test-quick, then make test-measured
# make test-quick     what needs no clock: units, virtual time, corpora, snapshots, documents
# make test-measured  what sends and measures: over loopback, between namespaces, against real peers
# make lint   formatting, clippy, layering, licences
# make test-hosts  nine hosts with an sshd each, and a Slurm of three nodes; make test-measured has it too
# make test-kubernetes  three nodes of a real Kubernetes, which is built once, in five minutes; make test-measured has it where it is built
# make test-vm  the kernel's pktgen and netem, on Debian's kernel in an emulated machine
# make findings  planted faults against what fathom says of them; writes docs/findings.md
# make devices  defects of the reference balancer against what the tests of devices say; writes docs/device-defects.md
# make findings-ci  a few of them, in less than a minute
# make bench  ours against the peers, side by side
.PHONY: run test test-quick test-measured test-hosts test-kubernetes test-vm lint findings devices findings-ci bench schema man

CARGO ?= cargo
NICE := $(shell [ "$$(nice -n -10 nice 2>/dev/null)" = -10 ] && echo nice -n -10)

run:
	$(CARGO) run --release --package fathom -- evaluate

test: test-quick test-measured

# Test programs whose name begins with `measured` need a machine that nobody else uses; all others do not care.
# No crate has examples in its documentation, which tidy checks: to run them, cargo would build all crates below theirs once more.
# Some of these tests wait and some compute, so three of their programs run at a time.
test-quick:
	printf '%s\n' '--lib --bins' '--test c*' '--test [!cm]*' | xargs --max-lines=1 --max-procs 3 $(CARGO) test --workspace
	$(CARGO) xtask tidy

# Rights permitting, at a higher priority: a sender on a schedule cannot share its core with a compiler. Always the whole workspace, because
# the features of a single package would build everything again. First the agents, the hosts, the protocols of other tools and both sides of the
# transport in one process: these wait most of the time or count without a clock, and run beside each other. In the tests of the program, those
# that judge no rate do, then those of low rates, too; then all others run alone, each of which has a thread that waits for its turn.
test-measured:
	printf '%s\n' 'b*' 'fl*' 'h*' 'i*' 'n*' | $(NICE) xargs --max-procs 5 --replace $(CARGO) test --workspace --test 'measured_{}'
	$(NICE) $(CARGO) test --workspace --test 'measured_[!bfhinp]*' --test 'measured_f[!l]*'
	$(NICE) $(CARGO) test --workspace --test measured_program -- --test-threads=160

test-hosts:
	$(NICE) $(CARGO) test --workspace --test measured_hosts

test-kubernetes:
	crates/program/fathom/tests/measured_kubernetes/cluster/build.sh
	$(NICE) $(CARGO) test --workspace --test measured_kubernetes

test-vm:
	$(CARGO) xtask test-vm

lint:
	$(CARGO) fmt --all --check
	$(CARGO) xtask tidy
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check; else echo "SKIPPED: cargo deny check (cargo install cargo-deny)"; fi

# Plants every fault of `fathom lab fault` and writes docs/findings.md: what was planted, what fathom said; first on a quiet machine, then
# beside programs that use its cores. It needs python3 and nginx.
findings:
	$(CARGO) build --release --package fathom
	$(CARGO) xtask findings --write
	$(CARGO) xtask findings --write --busy

# Turns on each defect of the reference balancer, runs the test that is made for it, and writes docs/device-defects.md.
devices:
	$(CARGO) build --release --package fathom
	$(CARGO) xtask devices --write

# A few of them in less than a minute, with the program that the tests have built.
findings-ci:
	$(NICE) $(CARGO) xtask findings --ci

bench:
	bench/run.sh
	bench/memory
	bench/price
	bench/anatomy
	bench/xdp
	bench/replay
	bench/accuracy
	bench/repeatability

# The JSON Schema of a run, from the types of the model; a test fails when it is out of date.
schema:
	$(CARGO) xtask schema

man:
	$(CARGO) run --release --package fathom -- generate man target/man
