"""The programs of linear_cross_entropy."""


def by_pass(cap: bool, smooth: bool) -> str:
    """With a pass over the logits that makes their gradient; what an option needs is there only with the option."""
    z = "cap * tanh(y / cap)" if cap else "y"
    product = lambda name, out: f"""
program {name} {{
    in  A : bf16[M, K]
    in  W : bf16[V, K]
    in  t : i32[M]
    {"param cap = 1" if cap else ""}
    y = A @ W.T
    z = {z}
    {out}
    out L : f32[M, V/128] = logsumexp(z, V:128)
    out T : f32[M]        = pick(z, t)
    {"out Q : f32[M, V/128] = sum(z, V:128)" if smooth else ""}
}}
"""  # noqa: E731
    return f"""
{product("logits", "out Z : bf16[M, V] = y       # before the cap: what the gradient needs")}
# For a loss without gradients, which stores no logits.
{product("statistics", "")}
# What is a number for each 128 columns of the logits becomes a number for each 16384, where a thread can finish a row.
program runs {{
    in  L : f32[M, R]
    {"in  Q : f32[M, R]" if smooth else ""}
    out P : f32[M, R/128] = logsumexp(L, R:128)
    {"out U : f32[M, R/128] = sum(Q, R:128)" if smooth else ""}
}}
# Loss of every row; 0 for ignored rows. share is smoothing / V.
program loss {{
    in  P : f32[M, S]
    {"in  U : f32[M, S]" if smooth else ""}
    in  T : f32[M]
    in  t : i32[M]
    param ignore = -100
    {"param smoothing = 0; param share = 0" if smooth else ""}
    param z_loss = 0
    l = logsumexp(P, S)
    out lse : f32[M] = l
    out ce : f32[M] = where(t == ignore, 0, l - {"(1 - smoothing) * T - share * sum(U, S)" if smooth else "T"})
    out zl : f32[M] = where(t == ignore, 0, z_loss * l * l)
}}
# Gradient of the logits, which takes their place: of w ce + u zl.
program gradient {{
    in  Z : bf16[M, V]
    in  lse : f32[M]
    in  t : i32[M]
    in  w, u : f32[M]
    param ignore = -100
    {"param smoothing = 0; param share = 0" if smooth else ""}
    param z_loss = 0
    {"param cap = 1" if cap else ""}
    live = where(t == ignore, 0, w)
    spread = where(t == ignore, 0, w + 2 * z_loss * lse * u)
    {"h = tanh(Z / cap)" if cap else ""}
    dz = exp({"cap * h" if cap else "Z"} - lse) * spread - {
        "((1 - smoothing) * onehot(t, V) + share)" if smooth else "onehot(t, V)"} * live
    out dZ : bf16[M, V] = {"dz * (1 - h * h)" if cap else "dz"}
}}
"""


# Without the pass. The logits are stored as E = exp(z - c), where c is a guess of their log-sum-exp from some columns; the
# gradient is E with one element a row changed, times one factor a row: for the gradient of x after its product, for the
# weight's in x. A row of which c was no good guess is marked, since E overflows there or nothing of what counts is left of
# it. Where one is, the GPU goes on to the programs with `when`: the log-sum-exp of those rows, safe for all logits, then E
# again with that for c. Rows that were not marked keep their bits.
MOST_COLUMNS = 128 * 4096  # two levels of runs
GUESS = """
program guess {
    in  A : bf16[M, K]
    in  some : bf16[G, K]           # columns of the logits
    z = A @ some.T
    out C : f32[M, G/128] = logsumexp(z, G:128)
}
"""
_RUNS_AGAIN = """
program runs_again {
    in  Y : f32[M, R]
    in  marked : f32[M]
    when marked
    out P : f32[M, R/4096] = sum(Y, R:4096)
}
"""


def by_exponentials(wide: bool) -> str:
    """wide: in f32, where a log-sum-exp is not exact enough for its exponentials to add up to 1."""
    return f"""
program exponentials {{
    in  A : bf16[M, K]
    in  W : bf16[V, K]
    in  C : f32[M, X]
    in  t : i32[M]
    param shift = 0                 # log V / G
    z = A @ W.T
    e = exp(z - (logsumexp(C, X) + shift))
    out E : bf16[M, V]    = e
    out S : f32[M, V/128] = sum(e, V:128)
    out T : f32[M]        = pick(z, t)
}}
program runs {{
    in  S : f32[M, R]
    p = sum(S, R:4096)              # the whole row: R is no more
    out P : f32[M, R/4096] = p
    out marked : f32[M, R/4096] = 1 - (abs(log(p)) < 45)    # NaN too
}}
program logits_again {{
    in  A : bf16[M, K]
    in  W : bf16[V, K]
    in  marked : f32[M]
    when marked
    z = A @ W.T
    out S : f32[M, V/128] = logsumexp(z, V:128)
}}
program exponentials_again {{
    in  A : bf16[M, K]
    in  W : bf16[V, K]
    in  C : f32[M, X]
    in  S : f32[M, R]
    in  marked : f32[M]
    in  t : i32[M]
    param shift = 0
    when marked
    b = logsumexp(S, R)
    z = A @ W.T
    e = exp(z - where(marked, b, logsumexp(C, X) + shift))
    out E : bf16[M, V]    = e
    out B : f32[M]        = b
    out T : f32[M]        = pick(z, t)
    {"out Y : f32[M, V/128] = sum(e, V:128)" if wide else ""}
}}
{_RUNS_AGAIN if wide else ""}
# Losses, the factor of every row, and the element at the target: of s E the gradient of w ce + u zl.
program finish {{
    in  C : f32[M, X]
    in  P : f32[M, Q]
    in  B, marked, T : f32[M]
    in  t : i32[M]
    in  w, u : f32[M]
    param shift = 0
    param ignore = -100
    param z_loss = 0
    c = where(marked, B, logsumexp(C, X) + shift)
    sum = {"sum(P, Q)" if wide else "where(marked, 1, sum(P, Q))"}
    lse = c + log(sum)
    live = where(t == ignore, 0, w)
    spread = where(t == ignore, 0, w + 2 * z_loss * lse * u)
    least = abs(live) * 6e-8        # what a sum with w loses anyhow: nothing is divided by less
    factor = where(abs(spread) < least, least, spread)
    e = sum * (exp(min(T - lse, 0)) - where(live == 0, 0, live / factor))
    near = cast(e, bf16)            # the rounding of this element, the largest of its row, becomes one of the row's factor
    out ce : f32[M] = where(t == ignore, 0, lse - T)
    out zl : f32[M] = where(t == ignore, 0, z_loss * lse * lse)
    out s : f32[M] = factor / sum * where(near == 0, 1, e / near)
    out E[t] : bf16[M, V] = e
}}
"""


# With all that is made of them. H: rows of x with their factors.
SCALED_ROWS = """
program scaled_rows {
    in  A : bf16[M, K]
    in  s : f32[M]
    out H : bf16[M, K] = A * s
}
"""
INPUT_GRADIENT = """
program input_gradient {
    in  E : bf16[M, V]
    in  W : bf16[V, K]
    in  s : f32[M]
    out dX : bf16[M, K] = (E @ W) * s
}
"""
INPUT_GRADIENT_AND_SCALED_ROWS = """
program input_gradient_and_scaled_rows {
    in  E : bf16[M, V]
    in  W : bf16[V, K]
    in  s : f32[M]
    in  A : bf16[M, K]
    out dX : bf16[M, K] = (E @ W) * s
    out H : bf16[M, K] = A * s
}
"""


def parts_of_input_gradient(parts: int) -> str:
    """Where rows are so few that their tiles leave a GPU idle: sums over parts of the vocabulary, side by side."""
    return "".join(f"""
program part{i} {{
    in  E{i} : bf16[M, V{i}]
    in  W{i} : bf16[V{i}, K]
    out P{i} : f32[M, K] = E{i} @ W{i}
}}
""" for i in range(parts))


def parts_together(parts: int, name: str = "P", factor: str = "s", gradient: str = "dX", rows: str = "M") -> str:
    sums = [f"{name}{i}" for i in range(parts)]
    return f"""
program parts_together {{
    in  {", ".join(sums)} : f32[{rows}, K]
    in  {factor} : f32[{rows}]
    out {gradient} : bf16[{rows}, K] = ({" + ".join(sums)}) * {factor}
}}
"""


def weight_gradient(kind: str, left: str = "dZ", right: str = "A") -> str:
    """alone: that of one chunk. first, added: f32 sums over chunks. rounded: the sum in the weight's type."""
    out = {"alone": "bf16[V, K] = {}", "first": "f32[V, K] = {}", "added": "f32[V, K] += {}",
           "rounded": "bf16[V, K] += cast({}, bf16)"}[kind]
    return f"""
program weight_gradient_{kind} {{
    in  {left} : bf16[M, V]
    in  {right} : bf16[M, K]
    out dW : {out.format(f"{left}.T @ {right}")}
}}
"""


GRADIENTS = """
# A gradient that was made in the forward, times the one that arrives, which is mostly 1.
program scaled {
    in  G : bf16[M, K]
    in  d : f32
    in  less_one : f32
    when less_one
    out H : bf16[M, K] = G * d
}
program weight_gradient_of_sums {
    in  sums : f32[V, K]
    out dW : bf16[V, K] = sums
}
"""
