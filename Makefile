# coda builds with gcc and make alone. `make help` lists the targets.
CC      ?= gcc
PREFIX  ?= /usr/local
BUILD   ?= build
CFLAGS  ?= -O3 -g
WARN    := -Wall -Wextra -Wpedantic -Werror
ALL     =  -std=c11 -D_GNU_SOURCE $(WARN) -pthread -fPIC -fvisibility=hidden -Iinclude -Isrc $(CFLAGS)
LIBS    := -ldl -lm

GENERATED := $(addprefix $(BUILD)/generated/,standard_programs.c standard_blocks.c device_text.c)
SOURCES := $(sort $(wildcard src/*/*.c)) $(GENERATED)
OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(patsubst $(BUILD)/%,%,$(SOURCES)))
CLI     := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cli/*.c))
TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
KIT     := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/kit/*.c))
MACHINE := $(shell uname -m)
# Tests that run again on AMX's tiles in software, for machines that have none.
ifeq ($(MACHINE),x86_64)
TILES   := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/software_tiles/*.c))
TILED   := $(addprefix $(BUILD)/tests/software_tiles/test_,cpu_gemm cpu_compiled programs program_bits attention_pairs)
endif
# Builds below other targets use every processor; a -j of the caller's overrules.
JOBS     = $(if $(findstring j,$(filter-out --%,$(MAKEFLAGS))),,-j$(shell nproc 2>/dev/null || echo 2))

.PHONY: all demo test asan lint format fuzz install clean help test-gpu test-emulated test-python
all: $(BUILD)/libcoda.a $(BUILD)/libcoda.so $(BUILD)/coda

help:
	@echo 'make            the library and build/coda'
	@echo 'make demo       train a small Llama on this repository'"'"'s text (DATA=file for another)'
	@echo 'make test       the tests (needs libcmocka-dev)'
	@echo 'make test-gpu   the tests that need an NVIDIA GPU'
	@echo 'make test-emulated  CUDA kernels on a GPU that the host emulates (needs a C++ compiler and python3)'
	@echo 'make test-python  the tests of the Python package (needs pytest, numpy, torch, transformers)'
	@echo 'make asan       the tests under AddressSanitizer and UBSan'
	@echo 'make lint       clang-format, clang-tidy, cppcheck'
	@echo 'make fuzz       libFuzzer over the parser, the compiler and the safetensors reader (SECONDS=300)'
	@echo 'make install    to PREFIX (/usr/local), with a pkg-config file'

# Instruction sets are chosen at run time, so only these files may use more than the machine's baseline.
ifeq ($(MACHINE),x86_64)
$(BUILD)/src/%_avx2.o:       ISA := -mavx2 -mfma -mf16c
$(BUILD)/src/%_avx512.o:     ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/src/%_avx512bf16.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/src/%_amx.o $(BUILD)/tests/software_tiles/%_amx.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mamx-tile -mamx-bf16 -mfma -mf16c
endif

# Vectors wider than the machine's pass between inlined functions alone.
$(BUILD)/tests/test_attention_pairs.o: ISA := -Wno-psabi

# V=1 prints the commands.
ifeq ($(V),)
say = @echo '  $(1) $(patsubst $(BUILD)/%,%,$@)' &&
endif

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,cc) $(CC) $(ALL) $(ISA) -MMD -MP -c $< -o $@

$(BUILD)/%.o: $(BUILD)/%.c
	@mkdir -p $(@D)
	$(call say,cc) $(CC) $(ALL) -Wno-overlength-strings -MMD -MP -c $< -o $@

# Texts that travel inside the library, as C strings.
text_to_c = sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/'
# $(call text_table,ARRAY,FILES,NAME): an array of {name, text}, NAME being the shell's expression for the name of $$f
text_table = { echo 'extern const char *const $(1)[][2];'; echo 'const char *const $(1)[][2] = {'; \
  for f in $(2); do echo "    {\"$(3)\","; $(text_to_c) $$f; echo '    },'; done; echo '    {0, 0}};'; }
$(BUILD)/generated/standard_programs.c: $(sort $(wildcard programs/*.coda)) Makefile
	@mkdir -p $(@D)
	@$(call text_table,coda_standard_texts,$(filter %.coda,$^),$$f) > $@
$(BUILD)/generated/standard_blocks.c: $(sort $(wildcard blocks/*.coda)) Makefile
	@mkdir -p $(@D)
	@$(call text_table,coda_block_texts,$(filter %.coda,$^),$$f) > $@
$(BUILD)/generated/device_text.c: $(sort $(wildcard src/cuda/device/*)) Makefile
	@mkdir -p $(@D)
	@$(call text_table,coda_device_texts,$(filter-out Makefile,$^),$$(basename $$f)) > $@

$(BUILD)/libcoda.a: $(OBJECTS)
	@rm -f $@
	$(call say,ar) ar rcs $@ $^

$(BUILD)/libcoda.so: $(OBJECTS)
	$(call say,ld) $(CC) $(ALL) -shared -Wl,-soname,libcoda.so.0 $^ $(LIBS) -o $@

$(BUILD)/coda: $(CLI) $(BUILD)/libcoda.a
	$(call say,ld) $(CC) $(ALL) $^ $(LIBS) -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(KIT) $(BUILD)/libcoda.a
	$(call say,ld) $(CC) $(ALL) $^ -lcmocka $(LIBS) -o $@

$(BUILD)/tests/software_tiles/test_%: $(BUILD)/tests/test_%.o $(TILES) $(KIT) $(BUILD)/libcoda.a
	$(call say,ld) $(CC) $(ALL) $^ -lcmocka $(LIBS) -o $@

$(BUILD)/examples/%: $(BUILD)/examples/%.o $(BUILD)/libcoda.a
	$(call say,ld) $(CC) $(ALL) $^ $(LIBS) -o $@

-include $(OBJECTS:.o=.d) $(CLI:.o=.d) $(KIT:.o=.d) $(TILES:.o=.d) $(addsuffix .d,$(TESTS) $(EXAMPLES))

# ---------------------------------------------------------------- the main job
DATA ?= $(BUILD)/demo.txt
$(BUILD)/demo.txt: $(wildcard docs/*.md README.md LICENSE include/*.h src/*/*.c src/*/*.h programs/*.coda blocks/*.coda cli/*.c)
	@mkdir -p $(@D)
	@cat $^ > $@

demo:
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/coda $(DATA)
	$(BUILD)/coda train --data $(DATA) --out $(BUILD)/demo --overwrite $(ARGS)

# ---------------------------------------------------------------- tests
$(BUILD)/test-setup:
	@mkdir -p $(@D)
	@scripts/test-setup
	@touch $@

test: $(BUILD)/test-setup
	@$(MAKE) --no-print-directory all $(TESTS) $(TILED) $(EXAMPLES)
	@CODA=$(BUILD)/coda scripts/run-tests $(TESTS) $(TILED)

# The Python package's tests: they need pytest, numpy, torch and transformers, and use a GPU where there is one, two for NCCL.
PYTHON ?= python3
test-python: $(BUILD)/libcoda.so
	@CODA_LIBRARY=$(abspath $(BUILD))/libcoda.so $(PYTHON) -m pytest -q $(PYTEST) python/tests

# All that needs a GPU: the C tests and the sanitizers, then the Python tests, side by side where pytest-xdist is installed.
test-gpu: all
	@$(MAKE) --no-print-directory -C tests/gpu CODA_BUILD=$(abspath $(BUILD)) test
	@if ! $(PYTHON) -c 'import numpy, pytest, torch, transformers' 2>/dev/null; then \
	  echo 'Python tests skipped: they need numpy, pytest, torch and transformers'; \
	elif $(PYTHON) -c 'import xdist' 2>/dev/null; then \
	  $(MAKE) --no-print-directory test-python PYTEST='-n auto --maxprocesses 16 --dist worksteal'; \
	else $(MAKE) --no-print-directory test-python; fi

# CUDA kernels of every schedule, translated to C++ (tests/emulated).
test-emulated: $(BUILD)/libcoda.a
	@$(MAKE) --no-print-directory -C tests/gpu CODA_BUILD=$(abspath $(BUILD)) ONLY='$(ONLY)' emulated

# Leaks count too. Attention to time: -O1, and the sanitizers at once.
asan:
	@ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(MAKE) --no-print-directory BUILD=$(BUILD)/asan CODA_TEST_QUICK=1 \
	  CFLAGS='-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined' test

# ---------------------------------------------------------------- fuzzing: clang's libFuzzer
SECONDS ?= 300
FUZZERS := $(patsubst tests/%.c,%,$(wildcard tests/fuzz_*.c))
fuzz:
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/fuzz CC=clang CFLAGS='-O1 -g -fsanitize=address,undefined,fuzzer-no-link' \
	  $(BUILD)/fuzz/libcoda.a
	@for f in $(FUZZERS); do mkdir -p $(BUILD)/fuzz/corpus/$$f; \
	  clang -std=c11 -D_GNU_SOURCE -pthread -Iinclude -Isrc -Itests -O1 -g -fsanitize=address,undefined,fuzzer tests/$$f.c \
	    $(BUILD)/fuzz/libcoda.a $(LIBS) -o $(BUILD)/fuzz/$$f || exit 1; \
	  scripts/fuzz-seeds $$f $(BUILD)/fuzz/corpus/$$f; \
	  $(BUILD)/fuzz/$$f -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/corpus/$$f 2>&1 | tail -n 12 || exit 1; \
	done

# ---------------------------------------------------------------- lint
C_FILES := $(wildcard include/*.h src/*/*.[ch] cli/*.[ch] tests/*.[ch] tests/kit/*.[ch] tests/software_tiles/*.[ch] tests/emulated/*.c tests/emulated/emulated_gpu.h tests/gpu/*.[ch] bench/*.[ch] examples/*.c)
format:
	clang-format -i $(C_FILES)

lint: $(GENERATED)
	@clang-format --dry-run --Werror $(C_FILES)
	cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --suppressions-list=.cppcheck \
	  --error-exitcode=1 -j2 -Iinclude -Isrc src cli
	scripts/tidy $(wildcard src/*/*.c cli/*.c)

# ---------------------------------------------------------------- install
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	  $(DESTDIR)$(PREFIX)/share/coda/programs $(DESTDIR)$(PREFIX)/share/coda/blocks
	install -m 755 $(BUILD)/coda $(DESTDIR)$(PREFIX)/bin/coda
	install -m 644 $(BUILD)/libcoda.a $(DESTDIR)$(PREFIX)/lib/libcoda.a
	install -m 755 $(BUILD)/libcoda.so $(DESTDIR)$(PREFIX)/lib/libcoda.so.0
	ln -sf libcoda.so.0 $(DESTDIR)$(PREFIX)/lib/libcoda.so
	install -m 644 include/coda.h $(DESTDIR)$(PREFIX)/include/coda.h
	install -m 644 programs/*.coda $(DESTDIR)$(PREFIX)/share/coda/programs/
	for f in blocks/*.coda; do [ -f "$$f" ] && install -m 644 $$f $(DESTDIR)$(PREFIX)/share/coda/blocks/ || true; done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$(sed -n 's/.*CODA_VERSION "\(.*\)".*/\1/p' include/coda.h)|" coda.pc.in \
	  > $(DESTDIR)$(PREFIX)/lib/pkgconfig/coda.pc

clean:
	rm -rf $(BUILD)
