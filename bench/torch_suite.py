"""coda.torch beside what a PyTorch user would take instead: eager, torch.compile, Liger. One process, one GPU, interleaved.

    python bench/torch_suite.py --sections layer,head --widths 2048,4096 --out runs/torch.jsonl --svg runs/torch.svg

Sections: host (cost of a call), operators, layer (from attention's output to the next query, key and value), head (linear and
cross-entropy, with peak memory), step (a training step of a Llama of 1.2 billion parameters). Every peer computes the same
mathematics on the same random bf16 tensors; its error is that of its results against the same in f32. Before each run the L2
cache is overwritten; times are medians of CUDA events, in milliseconds. A peer that cannot run is reported with its reason.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

import coda.torch as C

EPS, HEAD = 1e-6, 128


# ---------------------------------------------------------------- the mathematics, by peer

def norm(x, g):
    return F.rms_norm(x, g.shape, g, EPS)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def eager_qkv(x, g, wq, wk, wv, cos, sin):
    h = norm(x, g)
    q, k, v = (F.linear(h, w).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (wq, wk, wv))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def eager_mlp(y, x, wo, g, wg, wu, wd):
    x = F.linear(y, wo) + x
    h = norm(x, g)
    return F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd) + x


def eager_layer(y, x, wo, g0, wg, wu, wd, g1, wq, wk, wv, cos, sin):
    x = eager_mlp(y, x, wo, g0, wg, wu, wd)
    return x, *eager_qkv(x, g1, wq, wk, wv, cos, sin)


def coda_qkv(x, g, wq, wk, wv, table):
    q, k, v = C.linear_rope(x, wq, wk, wv, table, norm_weight=g, eps=EPS)
    return tuple(t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in (q, k, v))


def coda_layer(y, x, wo, g0, wg, wu, wd, g1, wq, wk, wv, table):
    x = C.attention_output_mlp(y, x, wo, g0, wg, wu, wd, eps=EPS)
    return x, *coda_qkv(x, g1, wq, wk, wv, table)


def liger_functions():
    from liger_kernel.transformers import functional as L

    def qkv(x, g, wq, wk, wv, cos, sin):
        h = L.liger_rms_norm(x, g, EPS, in_place=False)
        q, k, v = (F.linear(h, w).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (wq, wk, wv))
        q, k = L.liger_rope(q, k, cos, sin)
        return q, k, v

    def mlp(y, x, wo, g, wg, wu, wd):
        h, x = L.liger_fused_add_rms_norm(F.linear(y, wo), x, g, EPS, in_place=False)
        return F.linear(L.liger_swiglu(F.linear(h, wg), F.linear(h, wu)), wd) + x

    def layer(y, x, wo, g0, wg, wu, wd, g1, wq, wk, wv, cos, sin):
        x = mlp(y, x, wo, g0, wg, wu, wd)
        return x, *qkv(x, g1, wq, wk, wv, cos, sin)

    def head(x, w, t):
        return L.liger_fused_linear_cross_entropy(x, w, t)
    return {"qkv": qkv, "mlp": mlp, "layer": layer, "head": head}


# ---------------------------------------------------------------- measuring

class Bench:
    def __init__(self, options):
        self.options, self.rows, self.device = options, [], torch.device("cuda")
        self.flush_memory = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.out = open(options.out, "a") if options.out else None

    def report(self, **row):
        row = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), **row}
        self.rows.append(row)
        if self.out:
            print(json.dumps(row), file=self.out, flush=True)
        print("  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()
                        if k not in ("card", "torch", "date")), flush=True)

    def normal(self, *shape, scale=1.0):
        return (torch.randn(*shape, device=self.device) * scale).bfloat16()

    def interleaved(self, runs):
        """Median milliseconds of each: {name: function}."""
        for f in runs.values():
            for _ in range(3):
                f()
        torch.cuda.synchronize()
        times = {name: [] for name in runs}
        for _ in range(self.options.repeat):
            for name, f in runs.items():
                self.flush_memory.zero_()
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                f()
                end.record()
                torch.cuda.synchronize()
                times[name].append(begin.elapsed_time(end))
        return {name: statistics.median(t) for name, t in times.items()}

    def peak(self, f):
        """MiB beyond what is allocated before the call."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        f()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def compare(self, section, peers, reference, inputs, **labels):
        """Times forward and forward+backward of {peer: (function, more inputs)}, with errors against `reference` in f32."""
        leaves = [t.requires_grad_() for t in inputs]
        double = [t.detach().float().requires_grad_() for t in inputs]
        function, more = reference
        expected = as_tuple(function(*double, *[m.float() if m.is_floating_point() else m for m in more]))
        torch.manual_seed(3)
        arriving = [torch.randn_like(e).bfloat16() if e.dim() else torch.ones_like(e) for e in expected]
        wanted = [*expected, *torch.autograd.grad(expected, double, [a.float() for a in arriving])]
        wanted = [w.detach() for w in wanted]
        forward, both = {}, {}
        for name, (f, extra) in peers.items():
            def run(f=f, extra=extra):
                return as_tuple(f(*leaves, *extra))

            def backward(run=run):
                out = run()
                return [*out, *torch.autograd.grad(out, leaves, [a.to(o.dtype) for a, o in zip(arriving, out)])]
            try:
                got = backward()
                error = max(((g.float() - w).norm() / w.norm()).item() for g, w in zip(got, wanted))
                del got
                memory = self.peak(backward)
            except Exception as problem:  # a peer that fails is a finding, not the end of the run
                self.report(section=section, peer=name, failed=f"{type(problem).__name__}: {problem}"[:300], **labels)
                continue
            both[name] = (backward, error, memory)
            forward[name] = lambda run=run: inference(run)
        del wanted, expected, double
        ahead = self.interleaved(forward)
        whole = self.interleaved({name: f for name, (f, _, _) in both.items()})
        for name, (_, error, memory) in both.items():
            self.report(section=section, peer=name, forward_ms=ahead[name], both_ms=whole[name], error=error,
                        peak_mib=memory, **labels)


def inference(run):
    with torch.no_grad():
        return run()


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


# ---------------------------------------------------------------- sections

def widths(options):
    return [(w, {2048: 5632, 4096: 11008, 8192: 22016}.get(w, w * 11 // 4)) for w in options.widths]


def peers_of(kind, eager, coda, tables, options):
    cos, sin, table = tables
    made = {"eager": (eager, (cos, sin)), "compile": (torch.compile(eager, dynamic=False), (cos, sin)),
            "coda": (coda, (table,))}
    if options.autotune:
        made["max-autotune"] = (torch.compile(eager, dynamic=False, mode="max-autotune-no-cudagraphs"), (cos, sin))
    try:
        made["liger"] = (liger_functions()[kind], (cos, sin))
    except ImportError as problem:
        print("liger:", problem)
    if kind == "mlp":
        made = {name: (f, ()) for name, (f, _) in made.items()}
    return {k: v for k, v in made.items() if k not in options.without}


def rope_tables(bench, length):
    table = C.rope_table(length, HEAD, 500000.0, device="cuda")
    half = HEAD // 2
    cos, sin = (torch.cat([t, t], -1).bfloat16()[None] for t in (table[:, :half], table[:, half:]))
    rounded = torch.cat([cos[0, :, :half], sin[0, :, :half]], -1).float()
    return cos, sin, rounded


def layer_inputs(bench, d, f, batch, length):
    n = bench.normal
    return [n(batch, length, d), n(batch, length, d), n(d, d, scale=d**-0.5), 1 + n(d, scale=0.1), n(f, d, scale=d**-0.5),
            n(f, d, scale=d**-0.5), n(d, f, scale=f**-0.5), 1 + n(d, scale=0.1), n(d, d, scale=d**-0.5),
            n(d, d, scale=d**-0.5), n(d, d, scale=d**-0.5)]


def section_layer(bench):
    o = bench.options
    for d, f in widths(o):
        batch, length = 2, o.tokens // 2
        tables = rope_tables(bench, length)
        bench.compare("layer", peers_of("layer", eager_layer, coda_layer, tables, o), (eager_layer, tables[:2]),
                      layer_inputs(bench, d, f, batch, length), width=d)
        torch.cuda.empty_cache()


def section_operators(bench):
    o = bench.options
    for d, f in widths(o):
        tables = rope_tables(bench, o.tokens // 2)
        everything = layer_inputs(bench, d, f, 2, o.tokens // 2)
        bench.compare("attention output and MLP",
                      peers_of("mlp", eager_mlp, lambda *t: C.attention_output_mlp(*t, eps=EPS), tables, o), (eager_mlp, ()),
                      everything[:7], width=d)
        bench.compare("norm, query, key, value, RoPE", peers_of("qkv", eager_qkv, coda_qkv, tables, o),
                      (eager_qkv, tables[:2]), [everything[1]] + everything[7:], width=d)


def section_head(bench):
    o = bench.options
    for d in o.widths:
        x, w = bench.normal(o.tokens, d), bench.normal(o.vocabulary, d, scale=d**-0.5)
        t = torch.randint(0, o.vocabulary, (o.tokens,), device="cuda")

        def eager(x, w):
            return F.cross_entropy(F.linear(x, w).float(), t)
        peers = {"eager": (eager, ()), "compile": (torch.compile(eager, dynamic=False), ()),
                 "coda": (lambda x, w: C.linear_cross_entropy(x, w, t), ()),
                 "coda, 1024 rows": (lambda x, w: C.linear_cross_entropy(x, w, t, chunk_rows=1024), ()),
                 "coda, recompute": (lambda x, w: C.linear_cross_entropy(x, w, t, recompute=True), ())}
        try:
            head = liger_functions()["head"]
            peers["liger"] = (lambda x, w: head(x, w, t), ())
        except ImportError as problem:
            print("liger:", problem)
        peers = {k: v for k, v in peers.items() if k not in o.without}
        bench.compare("head", peers, (eager, ()), [x, w], width=d, vocabulary=o.vocabulary)
        torch.cuda.empty_cache()


def section_host(bench):
    """Microseconds of host time a call, launches included; tensors so small that the GPU keeps up."""
    x, gate, up = (bench.normal(*s).requires_grad_() for s in ((64, 128), (128, 128), (128, 128)))
    residual, g = bench.normal(64, 128), bench.normal(128)
    d = torch.ones(64, 128, device="cuda", dtype=torch.bfloat16)

    def cost(f, count=2000):
        for _ in range(20):
            f()
        torch.cuda.synchronize()
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(count // 5):
                f()
            best = min(best, (time.perf_counter() - start) / (count // 5) * 1e6)
            torch.cuda.synchronize()
        return best

    start = time.perf_counter()
    C.linear_geglu(x, gate, up)
    bench.report(section="host", what="first call, ms", value=(time.perf_counter() - start) * 1e3)
    y = C.linear_swiglu(x, gate, up)
    with torch.no_grad():
        bench.report(section="host", what="linear, no gradient, us", value=cost(lambda: C.linear(x, gate)))
        bench.report(section="host", what="linear_swiglu, no gradient, us", value=cost(lambda: C.linear_swiglu(x, gate, up)))
        bench.report(section="host", what="F.linear, no gradient, us", value=cost(lambda: F.linear(x, gate)))
    bench.report(section="host", what="linear_swiglu, us", value=cost(lambda: C.linear_swiglu(x, gate, up)))
    bench.report(section="host", what="linear_residual_rmsnorm, us",
                 value=cost(lambda: C.linear_residual_rmsnorm(x, gate, residual, g)))
    bench.report(section="host", what="linear_swiglu backward (4 kernels), us",
                 value=cost(lambda: torch.autograd.grad(y, (x, gate, up), d, retain_graph=True), 500))
    z = F.silu(F.linear(x, gate)) * F.linear(x, up)
    bench.report(section="host", what="eager SwiGLU, us", value=cost(lambda: F.silu(F.linear(x, gate)) * F.linear(x, up)))
    bench.report(section="host", what="eager SwiGLU backward, us",
                 value=cost(lambda: torch.autograd.grad(z, (x, gate, up), d, retain_graph=True), 500))


def section_step(bench):
    """A training step of a Llama with the shapes of Llama 3.2 1B: forward, backward, fused AdamW, by way of transformers."""
    import transformers
    o = bench.options
    config = transformers.LlamaConfig(
        vocab_size=o.vocabulary, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=False,
        attn_implementation="sdpa", use_cache=False)
    for peer in ("eager", "compile", "liger", "coda"):
        if peer in o.without:
            continue
        try:
            torch.manual_seed(0)
            with torch.device("cuda"):
                model = transformers.LlamaForCausalLM(config).bfloat16().train()
            if peer == "liger":
                from liger_kernel.transformers import apply_liger_kernel_to_llama
                apply_liger_kernel_to_llama(model=model)
            run = torch.compile(model) if peer == "compile" else model
            if peer == "coda":
                print(C.apply(model))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            ids = torch.randint(0, o.vocabulary, (o.tokens // 8192 or 1, min(8192, o.tokens)), device="cuda")

            def step():
                loss = run(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                return loss
            losses = [step().item() for _ in range(3)]
            memory, times = bench.peak(step), []
            for _ in range(o.repeat):
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                step()
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end))
            ms = statistics.median(times)
            bench.report(section="step", peer=peer, both_ms=ms, tokens_per_s=ids.numel() / ms * 1e3, peak_mib=memory,
                         third_loss=losses[-1])
        except Exception as problem:
            bench.report(section="step", peer=peer, failed=f"{type(problem).__name__}: {problem}"[:300])
        run = model = optimizer = step = None
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- picture

COLORS = {"coda": "#2563eb", "coda, 1024 rows": "#60a5fa", "coda, recompute": "#93c5fd", "compile": "#f59e0b",
          "max-autotune": "#fbbf24", "liger": "#10b981", "eager": "#9ca3af"}


def svg(rows):
    """Forward+backward by section and width: bars, the shortest best."""
    groups = {}
    for r in rows:
        if "both_ms" in r:
            title = r["section"] + (f", width {r['width']}" if "width" in r else ", Llama of 1.2 billion parameters")
            groups.setdefault(title, []).append(r)
    lines, y = [], 30
    for title, members in groups.items():
        lines.append(f'<text x="10" y="{y}" font-weight="bold">{title}: forward and backward, ms (peak MiB)</text>')
        longest = max(m["both_ms"] for m in members)
        for m in sorted(members, key=lambda m: m["both_ms"]):
            y += 22
            width = 480 * m["both_ms"] / longest
            lines.append(f'<text x="130" y="{y}" text-anchor="end">{m["peer"]}</text>'
                         f'<rect x="140" y="{y - 13}" width="{width:.1f}" height="16" rx="2" '
                         f'fill="{COLORS.get(m["peer"], "#6b7280")}"/>'
                         f'<text x="{146 + width:.1f}" y="{y}">{m["both_ms"]:.2f} ({m["peak_mib"]:.0f})</text>')
        y += 40
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{y}" font-family="sans-serif" font-size="13">'
            f'<rect width="780" height="{y}" fill="white"/>' + "".join(lines) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    names = lambda text: [n for n in text.split(",") if n]  # noqa: E731
    parser.add_argument("--sections", type=names, default=["host", "operators", "layer", "head", "step"])
    parser.add_argument("--widths", type=numbers, default=[2048, 4096, 8192])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--without", type=names, default=[], help="peers to leave out")
    parser.add_argument("--autotune", action="store_true", help="also torch.compile with max-autotune")
    parser.add_argument("--out", help="JSON lines are added to this file")
    parser.add_argument("--svg", help="picture of this run")
    parser.add_argument("--draw", help="no run: draw the JSON lines of this file")
    options = parser.parse_args()
    if options.draw:
        with open(options.draw) as rows, open(options.svg or "/dev/stdout", "w") as file:
            file.write(svg([json.loads(row) for row in rows]))
        return
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA GPU")
    bench = Bench(options)
    for section in options.sections:
        start = time.perf_counter()
        globals()[f"section_{section}"](bench)
        print(f"# {section}: {time.perf_counter() - start:.1f} s", flush=True)
    if options.svg:
        with open(options.svg, "w") as file:
            file.write(svg(bench.rows))


if __name__ == "__main__":
    main()
