/* Memory of a pass over a model: what both paths share, and what each needs for itself. Rows are tokens. */
#ifndef CODA_MODEL_WORKSPACE_H
#define CODA_MODEL_WORKSPACE_H

#include "model/attention.h"
#include "model/parts.h"

/* One layer's values, all of the model's dtype but the f32 ones. */
struct layer_values {
    void *input;    /* residual stream at the layer's start: [rows, hidden] */
    void *qkv;      /* rotated queries and keys, values */
    void *attended; /* attention's output */
    float *lse;     /* attention's, [rows, heads] */
};

/* What one operator after another leaves for its backward. */
struct layer_unfused {
    void *input_normed, *middle_normed;
    void *middle; /* residual stream after attention */
    void *gate, *up;
    void *activated;                   /* silu(gate) */
    void *product;                     /* silu(gate) * up */
    float *input_scale, *middle_scale; /* 1/RMS of input and middle: [rows] */
};

struct unfused {
    struct layer_unfused *layer;
    void *output, *output_normed; /* of the last layer */
    float *output_scale;
    void *d_gate, *d_up, *scratch[2]; /* [rows, the widest] */
    float *norm_partials;             /* [rows / ROW_RUN, hidden] */
    void *logits;                     /* [head_rows, vocabulary] */
    float *head_lse;                  /* [head_rows] */
};

/* The schedules' memory: block 0 is the start of the model, block i the part between the attentions of layers i - 1 and
 * i, the last one the end. */
struct fused {
    struct parts parts;
    void **saved; /* one a block: what it keeps for its backward; NULL: nothing */
    void *scratch;
    float *d_embedding; /* rows of the embedding's gradient, in the scratch behind that of the start */
    float *d_loss;      /* of each row */
    void *logits;       /* generation: of one row */
};

struct workspace {
    int64_t rows;      /* tokens of a pass, at most */
    int64_t head_rows; /* rows of logits at a time, a multiple of ROW_RUN */
    struct memory memory;
    struct attention attention;
    struct layer_values *layer;
    double plain_bytes; /* moved by plain operators */

    int32_t *tokens, *targets, *positions;
    float *weights, *loss; /* of each row; the loss times its weight, over the divisor */
    void *d_stream[2];     /* [rows, hidden] */
    void *d_attended;      /* [rows, heads * head_dim] */
    void *d_qkv;
    struct unfused unfused;
    struct fused fused;
};

coda_status workspace_open(struct workspace *workspace, const coda_llama *llama, int64_t rows, coda_path path,
                           enum part_use use, coda_error *error);
void workspace_close(struct workspace *workspace);

#endif
