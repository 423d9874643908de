/* Buffers of a pass over a model: what the forward saves for the backward, and scratch. Rows are tokens. */
#ifndef CODA_MODEL_WORKSPACE_H
#define CODA_MODEL_WORKSPACE_H

#include "model/attention.h"
#include "model/llama.h"

/* One layer's values, all of the model's dtype but the f32 ones. */
struct saved {
    void *input;    /* residual stream at the layer's start: [rows, hidden] */
    void *middle;   /* after attention */
    void *qkv;      /* rotated queries and keys, values */
    void *attended; /* attention's output */
    void *gate, *up;
    float *input_scale, *middle_scale; /* 1/RMS of input and middle: [rows] */
    float *lse;                        /* attention's, [rows, heads] */
    /* the unfused path alone: what a program would have recomputed or never stored */
    void *input_normed, *middle_normed;
    void *activated; /* silu(gate) */
    void *product;   /* silu(gate) * up */
};

struct workspace {
    int64_t rows;      /* tokens of a pass, at most */
    int64_t head_rows; /* rows of logits at a time, a multiple of ROW_RUN */
    struct memory memory;
    struct attention attention;
    struct saved *layer; /* and one more, whose input is the last layer's output */
    double plain_bytes;  /* moved by plain operators */

    int32_t *tokens, *targets, *positions;
    float *weights;
    /* scratch */
    void *normed;      /* [rows, hidden] */
    void *product;     /* [rows, intermediate] */
    void *d_stream[2]; /* [rows, hidden] */
    void *d_attended;  /* [rows, heads * head_dim] */
    void *d_qkv;
    void *d_gate, *d_up;                 /* fused: the gate and up of the layer itself */
    void *scratch[2];                    /* unfused: [rows, the widest] */
    float *squares;                      /* partial sums for the norm: [rows, hidden / RUN] */
    float *dots;                         /* partial sums of z dz: [rows, the widest / RUN] */
    float *norm_partials;                /* [rows / ROW_RUN, hidden] */
    void *logits;                        /* [head_rows, vocabulary] */
    float *head_lse, *head_sum;          /* [head_rows, vocabulary / RUN] */
    float *final_scale;                  /* [rows] */
    float *target_logit, *loss, *z_loss; /* [rows] */
};

enum workspace_use { FOR_TRAINING, FOR_GENERATION };

coda_status workspace_open(struct workspace *workspace, const coda_llama *llama, int64_t rows, coda_path path,
                           enum workspace_use use, coda_error *error);
void workspace_close(struct workspace *workspace);

#endif
