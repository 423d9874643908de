"""coda.torch beside what a PyTorch user would take instead: eager, torch.compile, Liger, quack, CCE, the paper's kernels. One
process, one GPU, interleaved.

    python bench/torch_suite.py --sections layer,head --widths 2048,4096 --out runs/torch.jsonl --svg runs/torch.svg

Sections: host (cost of a call), kernels (single launches), operators, layer (from attention's output to the next query, key and
value), head (linear and cross-entropy, with peak memory), step (a training step of a Llama of 1.5 billion parameters). Every peer
computes the same mathematics on the same random bf16 tensors (torch_peers.py says how); its error is that of its results against
the same in f32.
Before each run a GiB is overwritten, so that L2 holds nothing of it and the host is ahead of the GPU, as in training; times are
medians of CUDA events, in milliseconds. A peer that cannot run is reported with its reason.
"""

import argparse
import dataclasses
import functools
import json
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import coda.torch as C
import torch_kernels
import torch_peers
from torch_peers import EPS, HEAD, Peer, heads

THETA = 500000.0


# ---------------------------------------------------------------- ours

def coda_qkv(x, g, wq, wk, wv, table):
    return tuple(heads(t) for t in C.linear_rope(x, wq, wk, wv, table, norm_weight=g, eps=EPS))


def coda_mlp(*tensors):
    return C.attention_output_mlp(*tensors, eps=EPS)


def coda_layer(*tensors, recompute=False):
    x, *qkv = C.attention_output_mlp_rope(*tensors, eps=EPS, recompute=recompute)
    return x, *(heads(t) for t in qkv)


# ---------------------------------------------------------------- measuring

class Bench:
    def __init__(self, options):
        self.options, self.rows, self.device = options, [], torch.device("cuda")
        self.flush_memory = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
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

    def profile(self, section, peer, f, count, **labels):
        """Every kernel's launches and microseconds of one call, the longest first."""
        f()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(count):
                f()
            torch.cuda.synchronize()
        events = sorted((e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA),
                        key=lambda e: e.time_range.start)
        kernels, ours, idle, busy_until = {}, [], [], float("inf")
        for e in events:
            launches, us = kernels.get(e.name, (0, 0.0))
            kernels[e.name] = launches + 1, us + e.time_range.elapsed_us()
            ours += [round(e.time_range.elapsed_us(), 1)] if e.name.startswith("coda_") else []
            idle.append((max(e.time_range.start - busy_until, 0), e.name[:60]))
            busy_until = e.time_range.end if len(idle) == 1 else max(busy_until, e.time_range.end)
        table = [[name[:110], round(n / count, 2), round(us / count, 1)]
                 for name, (n, us) in sorted(kernels.items(), key=lambda k: -k[1][1])]
        print(f"# kernels of {section}, {peer} {labels}: {sum(n for _, n, _ in table):.0f} launches, "
              f"{sum(us for *_, us in table) / 1e3:.3f} ms")
        for name, n, us in table[:self.options.kernels]:
            print(f"#   {us:10.1f} us {n:6.1f} x  {name}")
        print(f"# idle between kernels: {sum(us for us, _ in idle) / count / 1e3:.3f} ms; the longest of all runs, us, and before "
              "what:", *(f"{us:.0f} {name};" for us, name in sorted(idle, reverse=True)[:8]))
        if ours:
            print("# coda's in their order, us:", *ours[-len(ours) // count:], flush=True)
        if self.out:
            print(json.dumps({"section": section, "peer": peer, "kernels": table, **labels}), file=self.out, flush=True)

    def interleaved(self, runs, warm=3):
        """Median milliseconds of each: {name: function}."""
        for f in runs.values():
            for _ in range(warm):
                f()
        torch.cuda.synchronize()
        times, order = {name: [] for name in runs}, random.Random(1)
        for _ in range(self.options.repeat):
            for name in order.sample(list(runs), len(runs)):  # what ran before moves a result
                self.flush_memory.zero_()
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                runs[name]()
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

    def expected(self, function, more, inputs):
        """Gradients that arrive at the results, and results and gradients in f32; none of these unchecked."""
        torch.manual_seed(3)
        if self.options.unchecked:
            with torch.no_grad():
                results = as_tuple(function(*inputs, *more))
            return [torch.randn_like(r) if r.dim() else torch.ones_like(r) for r in results], []
        single = [t.detach().float().requires_grad_() for t in inputs]
        results = as_tuple(function(*single, *[m.float() if m.is_floating_point() else m for m in more]))
        arriving = [torch.randn_like(r).bfloat16() if r.dim() else torch.ones_like(r) for r in results]
        gradients = torch.autograd.grad(results, single, [a.float() for a in arriving])
        return arriving, [w.detach() for w in (*results, *gradients)]

    def compare(self, section, peers, reference, inputs, **labels):
        """Times forward and forward+backward of {name: Peer}, with errors against `reference`, a function and its further
        arguments, in f32."""
        leaves = [t.requires_grad_() for t in inputs]
        arriving, wanted = self.expected(*reference, inputs)
        forward, both = {}, {}
        for name, peer in peers.items():
            started = time.perf_counter()
            try:
                own, given = peer.enter(leaves), [g.clone() for g in peer.arrive(arriving)]  # Liger's rotation overwrites them
                run = lambda peer=peer, own=own: as_tuple(peer.run(*own, *peer.extra))  # noqa: E731

                def backward(run=run, own=own, given=given):
                    out = run()
                    return [*out, *torch.autograd.grad(out, own, [a.to(o.dtype) for a, o in zip(given, out)])]
                got = backward()
                n = len(got) - len(own)
                got = sum(map(list, peer.leave(got[:n], got[n:])), [])
                torch.cuda.synchronize()
                prepared = time.perf_counter() - started
                error = max((((g.float() - w).norm() / w.norm()).item() for g, w in zip(got, wanted)), default=float("nan"))
                del got
                memory = self.peak(backward)
            except Exception as problem:  # a peer that fails is a finding, not the end of the run
                self.report(section=section, peer=name, failed=f"{type(problem).__name__}: {problem}"[:300], **labels)
                continue
            both[name] = (backward, error, memory, prepared)
            forward[name] = lambda run=run: inference(run)
        del wanted
        for name in self.options.profile:
            if name in both:
                self.profile(section, name, both[name][0], 3, **labels)
        ahead = self.interleaved(forward)
        whole = self.interleaved({name: f for name, (f, *_) in both.items()})
        for name, (_, error, memory, prepared) in both.items():
            self.report(section=section, peer=name, forward_ms=ahead[name], both_ms=whole[name], error=error,
                        peak_mib=memory, first_call_s=prepared, **labels)


def inference(run):
    with torch.no_grad():
        return run()


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


# ---------------------------------------------------------------- sections

def widths(options):
    return [(w, {2048: 5632, 4096: 11008, 8192: 22016}.get(w, w * 11 // 4)) for w in options.widths]


def peers_of(kind, eager, coda, tables, options, paper=None):
    """The peers of one piece of mathematics; `tables` are what it takes beside its inputs, the peers' and ours."""
    theirs, ours = tables
    made = {"eager": Peer(eager, theirs), "compile": Peer(torch.compile(eager, dynamic=False), theirs),
            "coda": Peer(coda, ours)}
    if "max-autotune" not in options.without:
        made["max-autotune"] = Peer(torch.compile(eager, dynamic=False, mode="max-autotune-no-cudagraphs"), theirs)
    for name, peers in (("liger", torch_peers.liger), ("quack", torch_peers.quack), ("cce", torch_peers.cce),
                        ("paper", torch_peers.paper)):
        if name in options.without:
            continue
        try:
            peer = peers().get(kind)
        except Exception as problem:  # not installed, or not in a version that works here
            print(f"{name}: {type(problem).__name__}: {problem}")
            continue
        if callable(peer):
            made[name] = peer(*paper)
        elif peer is not None:
            made[name] = dataclasses.replace(peer, extra=theirs)
    return {k: v for k, v in made.items() if k not in options.without}


def rope_tables(bench, length):
    table = C.rope_table(length, HEAD, THETA, device="cuda")
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
        cos, sin, table = rope_tables(bench, length)
        peers = peers_of("layer", torch_peers.eager_layer, coda_layer, ((cos, sin), (table,)), o, (d, batch, length, THETA))
        if "coda recompute" not in o.without:
            peers["coda recompute"] = Peer(functools.partial(coda_layer, recompute=True), (table,))
        bench.compare("layer", peers, (torch_peers.eager_layer, (cos, sin)),
                      layer_inputs(bench, d, f, batch, length), width=d)
        torch.cuda.empty_cache()


def section_operators(bench):
    o = bench.options
    for d, f in widths(o):
        cos, sin, table = rope_tables(bench, o.tokens // 2)
        everything = layer_inputs(bench, d, f, 2, o.tokens // 2)
        bench.compare("attention output and MLP", peers_of("mlp", torch_peers.eager_mlp, coda_mlp, ((), ()), o),
                      (torch_peers.eager_mlp, ()), everything[:7], width=d)
        bench.compare("norm, query, key, value, RoPE",
                      peers_of("qkv", torch_peers.eager_qkv, coda_qkv, ((cos, sin), (table,)), o),
                      (torch_peers.eager_qkv, (cos, sin)), [everything[1]] + everything[7:], width=d)


def section_kernels(bench):
    torch_kernels.section_kernels(bench, widths(bench.options), C.rope_table(bench.options.tokens // 2, HEAD, THETA, device="cuda"))


def section_head(bench):
    o = bench.options
    for d in o.widths:
        x, w = bench.normal(o.tokens, d), bench.normal(o.vocabulary, d, scale=d**-0.5)
        t = torch.randint(0, o.vocabulary, (o.tokens,), device="cuda", dtype=torch.int32)

        def eager(x, w, t):
            return F.cross_entropy(F.linear(x, w).float(), t.long())
        peers = peers_of("head", eager, C.linear_cross_entropy, ((t,), (t,)), o)
        for rows in o.chunk_rows if "coda" in peers else ():
            for exact in (True, False):
                peers[f"coda, {rows} rows{'' if exact else ', rounded'}"] = Peer(
                    lambda x, w, t, rows=rows, exact=exact: C.linear_cross_entropy(x, w, t, chunk_rows=rows, exact=exact), (t,))
        bench.compare("head", peers, (eager, (t,)), [x, w], width=d, vocabulary=o.vocabulary)
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
    o = bench.options
    config = llama(o.vocabulary)
    ids = torch.randint(0, o.vocabulary, (o.tokens // 8192 or 1, min(8192, o.tokens)), device="cuda")
    steps, facts = {}, {}
    for peer in ("eager", "compile", "compiled parts", "liger", "coda", "coda recompute", "coda + AdamW"):
        if peer in o.without:
            continue
        try:
            started = time.perf_counter()
            step = training_step(peer, config, ids)
            losses = [step().item() for _ in range(3)]
            facts[peer] = {"first_call_s": time.perf_counter() - started, "third_loss": losses[-1],
                           "peak_mib": bench.peak(step)}
            steps[peer] = step
        except Exception as problem:
            bench.report(section="step", peer=peer, failed=f"{type(problem).__name__}: {problem}"[:300])
        step = None
        torch.cuda.empty_cache()
    in_a_row = 3  # as in training, where a step begins while the GPU is at the one before
    runs = {peer: lambda step=step: [step() for _ in range(in_a_row)] for peer, step in steps.items()}
    for peer, ms in bench.interleaved(runs, warm=1).items():
        bench.report(section="step", peer=peer, both_ms=ms / in_a_row, tokens_per_s=ids.numel() * in_a_row / ms * 1e3,
                     **facts[peer])
    for peer in o.profile:
        if peer in steps:
            bench.profile("step", peer, steps[peer], 2)


def llama(vocabulary, layers=16):
    """The shapes of Llama 3.2 1B, with a head of its own."""
    import transformers
    return transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=False,
        attn_implementation="sdpa", use_cache=False)


def training_step(peer, config, ids, engine=lambda model: model):
    """A function that makes one step; `engine` puts DDP or the like around the model."""
    import transformers
    torch.manual_seed(0)
    with ids.device:
        model = transformers.LlamaForCausalLM(config).bfloat16().train()
    module = vars(sys.modules[type(model).__module__])
    functions = liger_functions(model, module) if peer == "liger" else {}
    theirs = {name: module[name] for name in functions}
    if peer == "compiled parts":  # so that transformers' masks stay what they are in eager code, and attention with them
        for part in (*model.model.layers, model.model.norm):
            part.compile(dynamic=False)
        model.loss_function = torch.compile(model.loss_function, dynamic=False)
    if peer.startswith("coda"):
        C.apply(model, recompute=peer == "coda recompute")
    run = engine(torch.compile(model) if peer == "compile" else model)
    if peer == "coda + AdamW":
        optimizer = C.AdamW(run.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(run.parameters(), lr=1e-4, fused=True)

    def step():
        module.update(functions)
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        module.update(theirs)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()
    return step


def liger_functions(model, module):
    """Patches the model; what Liger changed of its module, which other peers use too, is put back and returned."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    before = dict(module)
    apply_liger_kernel_to_llama(model=model)
    changed = {name: module[name] for name, value in before.items() if module[name] is not value}
    module.update({name: before[name] for name in changed})
    return changed


# ---------------------------------------------------------------- picture

PEERS = ("coda", "coda + AdamW", "coda recompute", "eager", "compile", "compiled parts", "max-autotune", "liger", "quack", "cce",
         "paper")
COLORS = {"coda": "#2563eb", "coda + AdamW": "#1e40af", "coda recompute": "#93c5fd", "compile": "#f59e0b",
          "compiled parts": "#fcd34d", "max-autotune": "#fbbf24", "liger": "#10b981", "eager": "#9ca3af",
          "quack": "#ec4899", "paper": "#8b5cf6", "cce": "#14b8a6"}


def svg(rows):
    """Forward+backward by section and width: bars, the shortest best."""
    groups = {}
    for r in rows:
        if "both_ms" in r:
            title = r["section"] + (f", width {r['width']}" if "width" in r else ", Llama of 1.5 billion parameters")
            groups.setdefault(title, []).append(r)
    lines, y = [], 30
    for title, members in groups.items():
        lines.append(f'<text x="10" y="{y}" font-weight="bold">{title}: forward and backward, ms (peak MiB)</text>')
        longest = max(m["both_ms"] for m in members)
        for m in sorted(members, key=lambda m: m["both_ms"]):
            y += 22
            width = 430 * m["both_ms"] / longest
            lines.append(f'<text x="190" y="{y}" text-anchor="end">{m["peer"]}</text>'
                         f'<rect x="200" y="{y - 13}" width="{width:.1f}" height="16" rx="2" '
                         f'fill="{COLORS.get(m["peer"], "#93c5fd")}"/>'
                         f'<text x="{206 + width:.1f}" y="{y}">{m["both_ms"]:.2f} ({m["peak_mib"]:.0f})</text>')
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
    parser.add_argument("--without", type=names, default=[], help="peers to leave out: eager, compile, max-autotune, "
                        "compiled parts, liger, quack, cce, paper, coda recompute, coda + AdamW")
    parser.add_argument("--only", type=names, default=[], help="these peers and no others")
    parser.add_argument("--every-tile", action="store_true", help="quack's tuner and the paper's choose among 22 tiles, not 4")
    parser.add_argument("--chunk-rows", type=numbers, default=[512, 1024, 2048, 4096, 8192], help="more chunks for the head")
    parser.add_argument("--unchecked", action="store_true", help="no errors: saves memory where only caches are to be filled")
    parser.add_argument("--profile", type=names, default=[], help="peers whose kernels are listed")
    parser.add_argument("--kernels", type=int, default=30, help="how many of them")
    parser.add_argument("--out", help="JSON lines are added to this file")
    parser.add_argument("--svg", help="picture of this run")
    parser.add_argument("--draw", help="no run: draw the JSON lines of this file")
    options = parser.parse_args()
    if options.only:
        options.without = [p for p in PEERS if p not in options.only]
    if options.draw:
        with open(options.draw) as rows, open(options.svg or "/dev/stdout", "w") as file:
            file.write(svg([json.loads(row) for row in rows]))
        return
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA GPU")
    torch_peers.every_tile = options.every_tile
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
