/* What people write out of habit from other languages, and how this one says it. */
#include "lang/parser.h"

#include <string.h>

static const struct {
    const char *words, *advice; /* words stand between spaces */
} habits[] = {
    {" if else elif ", "A choice is where(condition, a, b); it is made for every element."},
    {" and or not ", "Conditions are 1 or 0: `a and b` is a * b, `a or b` is max(a, b), `not a` is 1 - a."},
    {" True False true false None inf nan ", "Write a number; conditions are 1 or 0."},
    {" torch F nn np jnp jax tl math ", "Functions stand alone: silu(x), rsqrt(x)."},
    {" pow power square ", "There is no power operator: write x * x."},
    {" dim axis keepdim keepdims ", "Reductions name their axis: sum(x, N:128) for runs, sum(x, N) for the whole row."},
    {" swiglu geglu glu reglu ", "A gate is two products side by side: silu(A @ Wg.T) * (A @ Wu.T)."},
    {" dropout rand randn ", "Programs have no random numbers: pass a mask as an operand, x * mask."},
    {" matmul mm bmm addmm linear dot einsum ", "A product is A @ B; a weight [N, K] of nn.Linear is A @ W.T."},
    {" cat concat ", "Weights lie end to end in stack(W1, W2); columns interleave in join and join_halves."},
    {" reshape view permute transpose squeeze unsqueeze expand ",
     "Axes have names, and absent ones are repeated: nothing is reshaped. `.T` is for operands of a product."},
    {" float double half int auto let const var val ",
     "A value is NAME = expression: it has no declared type, and all arithmetic is f32."},
    {" return yield ", "What is stored is an out: out Y : bf16[M, N] = y."},
    {" for while def fn func import ", "Statements are in, param, axis, out, and NAME = expression; each runs once."},
};

const char *habit_of(const struct parser *parser, const struct token *token)
{
    size_t length = (size_t)token_length(token);
    const char *text = token_text(parser, token);
    if (token->kind == TOKEN_OPEN_BRACKET)
        return "Elements are not addressed: pairs, halves and pick take parts of the columns.";
    if (token->kind != TOKEN_NAME || length > 16)
        return NULL;
    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++)
        for (const char *at = habits[i].words; *at; at++)
            if (*at == ' ' && strncmp(at + 1, text, length) == 0 && at[1 + length] == ' ')
                return habits[i].advice;
    return NULL;
}
