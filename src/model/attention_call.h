/* One call of attention: its shapes, its share of the scratch memory, and its tasks. */
#ifndef CODA_MODEL_ATTENTION_CALL_H
#define CODA_MODEL_ATTENTION_CALL_H

#include "model/attention.h"

enum {
    ENOUGH_TASKS = 16,      /* fewer key heads than this are cut into parts in the backward, whatever the threads */
    MOST_PARTIAL = 1 << 26, /* floats */
};

struct attention_call {
    const struct attention *a;
    int64_t batch, sequence;
    int64_t length; /* sequence in whole blocks */
    int64_t width;  /* head_dim in whole tiles */
    int64_t row;    /* elements of a row of qkv */
    const char *qkv, *output, *d_output;
    char *out, *d_qkv;
    const float *lse_in;
    float *lse;
    float *shared; /* keys and values of all heads */
    float *slots;
    int64_t slot_size; /* floats */
    int64_t parts;     /* of a key head's blocks, in the backward */
    float *partial; /* gradients of queries, one matrix a sequence, query head and part; NULL where there is one part */
    int64_t tasks;
    _Atomic int64_t next; /* the first task that nobody has taken */
    void (*work)(struct attention_call *call, int64_t task, float *slot);
};

typedef void attention_task(struct attention_call *call, int64_t task, float *slot);

/* Makes room for `shared` floats and a slot for each worker of `tasks` tasks. */
coda_status attention_reserve(struct attention *attention, struct attention_call *call, int64_t shared, int64_t tasks,
                              coda_error *error);
/* Runs tasks on the device's threads: which takes which does not matter, each writes its own results. */
void attention_run(struct attention_call *call, int64_t tasks, attention_task *work);
/* The backward in parts of a key head's blocks, each with a slot of `slot_size` floats: `attend` makes a part, `add` adds up
 * the queries' gradients of one head, where there is more than one part. */
coda_status attention_run_backward(struct attention *attention, struct attention_call *call, int64_t slot_size,
                                   attention_task *attend, attention_task *add, coda_error *error);

/* In pairs of bf16 (attention_pairs.c). */
coda_status attention_pairs_forward(struct attention *attention, struct attention_call *call, coda_error *error);
coda_status attention_pairs_backward(struct attention *attention, struct attention_call *call, coda_error *error);

#endif
