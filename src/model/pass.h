/* The schedule of a model: which operator runs on which buffers, in order, fused into programs or one by one.
 *
 * A pass remembers its first failure; what follows one does nothing. */
#ifndef CODA_MODEL_PASS_H
#define CODA_MODEL_PASS_H

#include "model/workspace.h"

struct pass {
    coda_llama *llama;
    struct workspace *workspace;
    int64_t sequences, length; /* of equal lengths */
    float **gradient;          /* f32, by weight; NULL: forward alone */
    double divisor;            /* of the loss: the sum of the weights of live targets in the whole step */
    /* Takes the place of attention over whole sequences; NULL: none does. */
    void (*attend)(struct pass *pass, int64_t layer);
    void *context;
    coda_status status;
    coda_error *error;
};

static inline int64_t pass_rows(const struct pass *pass)
{
    return pass->sequences * pass->length;
}

/* Launches a kernel with the operands in the order of its program. */
#define LAUNCH(pass, which, parameters, ...)                                                                           \
    pass_launch(pass, which, parameters, (coda_tensor[]){__VA_ARGS__},                                                 \
                (int)(sizeof((coda_tensor[]){__VA_ARGS__}) / sizeof(coda_tensor)))
void pass_launch(struct pass *pass, enum kernel which, const double *parameters, const coda_tensor *operands,
                 int count);

/* [rows of the pass, columns] of the model's dtype */
coda_tensor pass_matrix(const struct pass *pass, const void *data, int64_t columns);
coda_tensor pass_gradient(const struct pass *pass, int index);
void pass_attention(struct pass *pass, int64_t layer); /* attention, or what stands in its place */
/* dW += dY^T X for a weight of `rows` outputs; dY's rows lie `stride` apart. */
void pass_wgrad(struct pass *pass, int index, const void *d_output, int64_t stride, const void *input);
/* Rows of the embedding's gradient += rows of `d_input`, in order. */
void pass_embedding_gradient(struct pass *pass, const void *d_input, coda_dtype dtype);

enum { IGNORED = -100 }; /* a target without a loss */

/* Embedding and layers; fused: up to the last attention. */
void fused_forward(struct pass *pass);
void unfused_forward(struct pass *pass);
/* The rest, up to the losses of every row; with gradients also its backward, which leaves d_stream[0]. */
void fused_head(struct pass *pass);
void unfused_head(struct pass *pass);
void fused_backward(struct pass *pass);
void unfused_backward(struct pass *pass);
/* The rest, up to the logits of the last row. */
void fused_logits(struct pass *pass);

/* A value of a block by its name in the schedule; false: there is none. The end of the model keeps nothing, so its forward
 * runs again first. */
void fused_recompute_end(struct pass *pass);
bool fused_value(const struct pass *pass, int64_t block, const char *name, coda_tensor *tensor);

/* The name and layer of the first value that is not finite, in the order of the computation, before any backward. */
bool pass_find_trouble(struct pass *pass, char *name, size_t room);

#endif
