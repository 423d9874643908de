/* Programs of every kind, to be run with a condition and without one. */
#ifndef KIT_CONDITIONS_H
#define KIT_CONDITIONS_H

static const char *const conditional_bodies[] = {
    "in A : bf16[M, K]; in W : bf16[N, K]; y = A @ W.T; out Y : bf16[M, N] = y; out S : f32[M, N/128] = sum(y, N:128)",
    "in A : bf16[M, K]; in W : bf16[N, K]; out Y : f32[M, N] += A @ W.T",
    "in A, W : f32[M, N]; out Y : f32[M, N] = A * W; out S : f32[M/64, N] = sum(A, M:64)",
    "in a, b : f32[M]; in t : i32[M]; out s : f32[M] = a * b; out E[t] : bf16[M, N] = a - b",
    "in P : f32[R, N]; out s : f32[N] = sum(P, R)",
};
enum { CONDITIONAL_BODIES = sizeof conditional_bodies / sizeof *conditional_bodies };

/* "program p { in m : f32[X]; when m; .. }" */
static inline void conditional_text(char *text, size_t size, const char *body, const char *type)
{
    if (type)
        snprintf(text, size, "program p { in m : %s; when m; %s }", type, body);
    else
        snprintf(text, size, "program p { %s }", body);
}

/* What a condition's first and last elements hold, all others 0, and whether it holds. */
static const struct {
    const char *type;
    uint32_t first, last;
    int holds;
} conditions[] = {
    {"f32[X]", 0, 0, 0},           {"f32[X]", 0x80000000u, 0, 0}, /* -0 */
    {"f32[X]", 0, 0x3f800000u, 1}, {"f32[X]", 1, 0, 1},           /* the least number above 0 */
    {"f32[X]", 0, 0x7fc00000u, 1},                                /* no number */
    {"i32[X]", 0, 0, 0},           {"i32[X]", 0x80000000u, 0, 1}, {"f32", 0, 0, 0}, {"i32", 5, 5, 1},
};
enum { CONDITIONS = sizeof conditions / sizeof *conditions };

#endif
