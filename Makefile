# coda builds with gcc and make alone. `make help` lists the targets.
CC      ?= gcc
PREFIX  ?= /usr/local
BUILD   ?= build
CFLAGS  ?= -O3 -g
WARN    := -Wall -Wextra -Wpedantic -Werror
ALL     =  -std=c11 -D_GNU_SOURCE $(WARN) -fopenmp -fPIC -fvisibility=hidden -Iinclude -Isrc $(CFLAGS)
LIBS    := -ldl -lm

SOURCES := $(sort $(wildcard src/*/*.c)) $(BUILD)/generated/standard_programs.c $(BUILD)/generated/device_text.c
OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(patsubst $(BUILD)/%,%,$(SOURCES)))
CLI     := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cli/*.c))
TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
KIT     := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/kit/*.c))
MACHINE := $(shell uname -m)

.PHONY: all demo test asan lint format fuzz install clean help test-gpu
all: $(BUILD)/libcoda.a $(BUILD)/libcoda.so $(BUILD)/coda

help:
	@echo 'make            the library and build/coda'
	@echo 'make demo       train a small Llama on this repository'"'"'s text (DATA=file for another)'
	@echo 'make test       the tests (needs libcmocka-dev)'
	@echo 'make test-gpu   the tests that need an NVIDIA GPU'
	@echo 'make asan       the tests under AddressSanitizer and UBSan'
	@echo 'make lint       clang-format, clang-tidy, cppcheck'
	@echo 'make fuzz       libFuzzer over the parser, the compiler and the safetensors reader (SECONDS=300)'
	@echo 'make install    to PREFIX (/usr/local), with a pkg-config file'

# Instruction sets are chosen at run time, so only these files may use more than the machine's baseline.
ifeq ($(MACHINE),x86_64)
$(BUILD)/src/cpu/%_avx2.o:       ISA := -mavx2 -mfma -mf16c
$(BUILD)/src/cpu/%_avx512.o:     ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/src/cpu/%_avx512bf16.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/src/cpu/%_amx.o:        ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mamx-tile -mamx-bf16 -mfma -mf16c
endif

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL) $(ISA) -MMD -MP -c $< -o $@

$(BUILD)/%.o: $(BUILD)/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL) -Wno-overlength-strings -MMD -MP -c $< -o $@

# Texts that travel inside the library, as C strings.
text_to_c = sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/'
$(BUILD)/generated/standard_programs.c: $(sort $(wildcard programs/*.coda)) Makefile
	@mkdir -p $(@D)
	@{ echo 'extern const char *const coda_standard_texts[][2];'; echo 'const char *const coda_standard_texts[][2] = {'; \
	  for f in $(sort $(wildcard programs/*.coda)); do echo "    {\"$$f\","; $(text_to_c) $$f; echo '    },'; done; \
	  echo '    {0, 0}};'; } > $@
$(BUILD)/generated/device_text.c: $(sort $(wildcard src/cuda/device/*)) Makefile
	@mkdir -p $(@D)
	@{ echo 'extern const char *const coda_device_texts[][2];'; echo 'const char *const coda_device_texts[][2] = {'; \
	  for f in $(sort $(wildcard src/cuda/device/*)); do echo "    {\"$$(basename $$f)\","; $(text_to_c) $$f; echo '    },'; done; \
	  echo '    {0, 0}};'; } > $@

$(BUILD)/libcoda.a: $(OBJECTS)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/libcoda.so: $(OBJECTS)
	$(CC) $(ALL) -shared -Wl,-soname,libcoda.so.0 $^ $(LIBS) -o $@

$(BUILD)/coda: $(CLI) $(BUILD)/libcoda.a
	$(CC) $(ALL) $^ $(LIBS) -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(KIT) $(BUILD)/libcoda.a
	$(CC) $(ALL) $^ -lcmocka $(LIBS) -o $@

-include $(OBJECTS:.o=.d) $(CLI:.o=.d) $(KIT:.o=.d) $(addsuffix .d,$(TESTS))
