/* The devices and standard programs that tests loop over, and sizes that suit each program. */
#ifndef KIT_STANDARD_H
#define KIT_STANDARD_H

#include "compare.h"

enum { MAX_DEVICES = 8 };

struct devices {
    int count;
    coda_device *device[MAX_DEVICES];
    char name[MAX_DEVICES][32];
    enum standard standard[MAX_DEVICES];
};

/* The reference, and the CPU with every instruction set that this machine has: a group's setup and teardown. */
int open_devices(void **state);
int close_devices(void **state);

/* Under a sanitizer everything takes several times as long: CODA_TEST_QUICK asks loops to skip most rounds. */
bool quick(void);

/* Both fail the test where the library cannot give them. */
const coda_module *standard_module(void);
const coda_program *standard_program(const char *name);

/* Sets one axis to the wanted size, or to the next multiple of a head where the program needs that. */
void set_size(const coda_program *program, coda_dims *dims, int index, int64_t size);
bool is_length(const char *axis); /* of heads or of rotated columns: sizes that follow `head` */
/* Small sizes that are no multiples of anything, where the program has no heads. */
coda_dims small_sizes(const coda_program *program, int64_t head);
/* 150 rows, some 300 columns. */
coda_dims large_sizes(const coda_program *program);

/* What outs hold, to be compared bit by bit. */
struct bits {
    size_t size[MAX_OPERANDS];
    void *data[MAX_OPERANDS];
};

void take_bits(const struct trial *trial, struct bits *bits);
void free_bits(struct bits *bits);
/* The name of an out that differs, or NULL. */
const char *differing_out(const struct trial *trial, const struct bits *expected);

#endif
