# One command each; `make` alone lists them. Whatever Debian packages are missing, `make deps` installs and names.

CARGO   ?= $(shell command -v cargo 2>/dev/null || echo $(HOME)/.cargo/bin/cargo)
PREFIX  ?= /usr/local
DESTDIR ?=
TARGET  := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
# Experiments and demo need root: network namespaces, packet sockets.
SUDO    := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)

.PHONY: help deps build packetdrill demo test test-redis test-kernels check bench peers install uninstall clean

help:
	@echo 'make demo     a preferred client stays fast: set-up, build, run, table, figure'
	@echo 'make test     all tests, against the real nginx, apache, redis, curl, iperf3, wrk, python'
	@echo 'make test-redis   all of redis own tests on paths, some forty minutes (make test has some of them)'
	@echo 'make test-kernels  a smoke test on other kernels, under QEMU (downloads Debian packages)'
	@echo 'make check    format, clippy with warnings as errors, documentation'
	@echo 'make bench    every experiment, quick (NAME=prefer for one, QUICK= for full length)'
	@echo 'make peers    other stacks that `bench stream` and `bench rr` compare with (--peer smoltcp,gvisor)'
	@echo 'make build    the release build'
	@echo 'make packetdrill  the plug-in for google/packetdrill'
	@echo 'make install  program, library, manual pages, completions (PREFIX=$(PREFIX), DESTDIR=)'

deps:
	@./scripts/deps

build:
	$(CARGO) build --release --locked -p scoutline-cli -p scoutline-preload

# For developers, and so not installed.
packetdrill:
	$(CARGO) build --release --locked -p scoutline-packetdrill

demo: deps build
	$(SUDO) $(RELEASE)/scoutline demo

# The release build is what integration tests start; they find it through SCOUTLINE_BIN.
# redis's own tests are fetched; SCOUTLINE_NO_REDIS_SUITE=1 leaves them out, where there is no network.
REDIS_TESTS := $(abspath $(TARGET))/redis-tests
test: deps build
	@[ -n "$(SCOUTLINE_NO_REDIS_SUITE)" ] || ./scripts/redis-tests "$(REDIS_TESTS)"
	SCOUTLINE_BIN="$(abspath $(RELEASE))/scoutline" SCOUTLINE_REDIS_SUITE="$(REDIS_TESTS)" \
		$(CARGO) test --workspace --locked

test-redis: deps build
	./scripts/redis-tests "$(REDIS_TESTS)"
	SCOUTLINE_BIN="$(abspath $(RELEASE))/scoutline" SCOUTLINE_REDIS_SUITE="$(REDIS_TESTS)" SCOUTLINE_LONG=1 \
		$(CARGO) test --locked -p scoutline-bench --test real_programs redis_passes

# Not part of `test`: it downloads kernels and qemu, and builds the program statically. Some minutes.
HOST := $(shell $(CARGO) -vV 2>/dev/null | sed -n 's/^host: //p')
test-kernels: build
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --release --locked --target $(HOST) \
		--target-dir "$(TARGET)/static" -p scoutline-cli
	SCOUTLINE_STATIC="$(abspath $(TARGET))/static/$(HOST)/release/scoutline" ./scripts/test-kernels

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps --locked

QUICK ?= --quick
bench: deps build
	@for name in $(or $(NAME),$$($(RELEASE)/scoutline bench --json | sed -n 's/.*"name": "\(.*\)".*/\1/p')); do \
		$(SUDO) $(RELEASE)/scoutline bench $$name $(QUICK) --plot $$name.svg || exit 1; \
	done

# Not of the workspace and not installed. They lie beside `scoutline`, which looks for them there.
peers:
	$(CARGO) build --release --locked --manifest-path crates/bench/peers/smoltcp/Cargo.toml --target-dir "$(TARGET)"
	@if command -v go > /dev/null; then \
		go build -C crates/bench/peers/gvisor -trimpath -buildvcs=false -o "$(abspath $(RELEASE))/scoutline-peer-gvisor"; \
	else \
		echo 'go is missing, so the peer gvisor is not built; https://go.dev/dl has it (1.26.3 or newer)'; \
	fi

install: build
	install -D -m 755 $(RELEASE)/scoutline $(DESTDIR)$(PREFIX)/bin/scoutline
	install -D -m 755 $(RELEASE)/libscoutline_preload.so $(DESTDIR)$(PREFIX)/lib/scoutline/libscoutline_preload.so
	install -D -m 644 packaging/scoutline.toml $(DESTDIR)$(PREFIX)/share/doc/scoutline/scoutline.toml
	install -D -m 644 crates/scout/include/scoutline.h $(DESTDIR)$(PREFIX)/include/scoutline.h
	$(RELEASE)/scoutline man --dir $(TARGET)/man
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(TARGET)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(RELEASE)/scoutline completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/scoutline
	$(RELEASE)/scoutline completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_scoutline
	$(RELEASE)/scoutline completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/scoutline.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/scoutline $(DESTDIR)$(PREFIX)/include/scoutline.h $(DESTDIR)$(PREFIX)/share/man/man1/scoutline.1 \
		$(DESTDIR)$(PREFIX)/share/man/man1/scoutline-*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/scoutline \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_scoutline \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/scoutline.fish
	rm -rf $(DESTDIR)$(PREFIX)/lib/scoutline $(DESTDIR)$(PREFIX)/share/doc/scoutline

clean:
	$(CARGO) clean
