#!/usr/bin/env python3
"""A Llama layer and its head with cross-entropy, forward and backward, against PyTorch on the same tensors in one process.

    python3 bench/torch_layer.py --library build/libcoda.so [--width 2048,4096,8192] [--tokens 16384] [--what layer,head]
                                 [--modes eager,compile] [--rounds 7] [--chunk 0] [--device cuda] [--check-only]
                                 [--also apart,y1]

First every result and gradient of both is compared with the same mathematics in float64 (fewer tokens): ours may be no worse
than 1.25 times PyTorch's bf16. Then all variants are timed in turns, 256 MB written before each, medians of events:
coda's schedule; PyTorch eager and torch.compile; and the bare products of the layer through torch.mm (cuBLAS).

A layer goes from the attention's output to the next rotated q, k, v. PyTorch gets gate/up and q/k/v as one matrix each, which
is its fastest form; coda gets them as a checkpoint stores them. Weight gradients are written, not added to: bf16 by PyTorch, f32 by coda.
One JSON line a row; `memory` is the peak in bytes beyond inputs, results and gradients (PyTorch: beyond inputs)."""
import argparse, ctypes, json, os, random, statistics, sys, time
import torch
import torch._dynamo
import torch._functorch.config
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cuda_bench import TORCH
from structures import BF16, F32, I32, MAX_DIMS, Dim, Dims, Error, Tensor

FORWARD, BACKWARD = 1, 2
HEAD = b"""block head {
    in x : bf16[M, D]; in W : bf16[V, D]; in g : bf16[D]; in t : i32[M]
    param eps = 1e-6
    z = rmsnorm(x, g, eps) @ W.T
    out ce : f32[M] = logsumexp(z, V) - pick(z, t)
}"""


class ScheduleOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("backward", ctypes.c_int), ("allow_passes", ctypes.c_int),
                ("together", ctypes.c_int), ("keep_saved", ctypes.c_int), ("consumes", ctypes.c_char_p),
                ("wide_axis", ctypes.c_char_p), ("row_axis", ctypes.c_char_p), ("chunk_rows", ctypes.c_int64),
                ("kernels", ctypes.c_void_p), ("wide_bytes", ctypes.c_int64),
                ("overwrite", ctypes.c_int), ("save", ctypes.c_char_p), ("join", ctypes.c_int), ("exponentials", ctypes.c_int)]


class Value(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
                ("dim", ctypes.c_char * 64 * 2), ("phases", ctypes.c_int), ("accumulated", ctypes.c_int),
                ("of", ctypes.c_char_p)]


class Library:
    def __init__(self, path, device):
        self.lib = ctypes.CDLL(path)
        for name in ("coda_module_find", "coda_module_program"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.coda_module_find.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.lib.coda_device_description.restype = ctypes.c_char_p
        self.device = ctypes.c_void_p()
        self.check(self.lib.coda_device_open, device.encode(), ctypes.byref(self.device))

    def check(self, function, *arguments):
        error = Error()
        if function(*arguments, ctypes.byref(error)) != 0:
            raise RuntimeError(error.message.decode())

    def standard_block(self, name):
        module = ctypes.c_void_p()
        self.check(self.lib.coda_standard_blocks, ctypes.byref(module))
        return ctypes.c_void_p(self.lib.coda_module_find(module, name.encode()))

    def parse(self, text):
        module = ctypes.c_void_p()
        self.check(self.lib.coda_module_parse, text, ctypes.c_size_t(len(text)), b"bench", ctypes.byref(module))
        return ctypes.c_void_p(self.lib.coda_module_program(module, 0))


class Schedule:
    """A schedule with its memory. Inputs are given by name; results and gradients are made here."""

    def __init__(self, library, block, dims, inputs, device, **options):
        self.library, lib = library, library.lib
        self.keep = [name.encode() for name in dims]
        d = Dims()
        for i, (name, size) in enumerate(zip(self.keep, dims.values())):
            d.item[i] = Dim(name, size)
        d.count = len(dims)
        o = ScheduleOptions(size=ctypes.sizeof(ScheduleOptions), backward=1, **options)
        self.handle = ctypes.c_void_p()
        library.check(lib.coda_schedule_create, library.device, block, ctypes.byref(d), ctypes.byref(o), ctypes.byref(self.handle))
        self.count = lib.coda_schedule_operand_count(self.handle)
        self.operands, self.data = (Tensor * self.count)(), {}
        for i in range(self.count):
            v, shape = Value(), (ctypes.c_int64 * 2)()
            lib.coda_schedule_value(self.handle, i, ctypes.byref(v))
            library.check(lib.coda_schedule_shape, self.handle, i, ctypes.byref(d), shape)
            name, size = v.name.decode(), list(shape[:v.rank])
            if v.kind == 0:
                t = inputs[name]
                assert list(t.shape) == size and t.dtype == TORCH[v.dtype] and t.is_contiguous(), (name, t.shape, size)
            else:
                t = torch.zeros(size, dtype=TORCH[v.dtype], device=device)
            self.data[name] = t
            self.operands[i] = Tensor(t.data_ptr(), v.dtype, v.rank, shape, 0)
        saved, scratch = ctypes.c_size_t(), ctypes.c_size_t()
        library.check(lib.coda_schedule_memory, self.handle, ctypes.byref(d), ctypes.byref(saved), ctypes.byref(scratch))
        self.memory = saved.value + scratch.value
        self.saved = torch.empty(saved.value + 256, dtype=torch.uint8, device=device)
        self.scratch = torch.empty(scratch.value + 256, dtype=torch.uint8, device=device)
        self.places = [ctypes.c_void_p((t.data_ptr() + 255) // 256 * 256) for t in (self.saved, self.scratch)]

    def launch(self, phases):
        error = Error()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None)
        if self.library.lib.coda_schedule_launch(self.handle, phases, self.operands, self.count, self.places[0],
                                                 self.places[1], None, stream, ctypes.byref(error)):
            raise RuntimeError(error.message.decode())

    def zero_gradients(self, names):
        for name in names:
            self.data[name].zero_()

    def free(self):
        self.library.lib.coda_schedule_free(self.handle)


# ---------------------------------------------------------------- the mathematics in PyTorch

def rms(x, w, eps=1e-6):
    return F.rms_norm(x, (x.shape[-1],), w, eps)


def rope(z, cos, sin, columns, head):
    m = z.shape[0]
    pair = z[:, :columns].view(m, -1, 2, head // 2)
    a, b = pair[:, :, 0].to(cos.dtype), pair[:, :, 1].to(cos.dtype)
    c, s = cos[:, None], sin[:, None]
    turned = torch.stack((a * c - b * s, b * c + a * s), 2).to(z.dtype).view(m, columns)
    return torch.cat((turned, z[:, columns:]), 1)


def layer(x, y, wo, wgu, wd, wqkv, g0, g1, cos, sin, head):
    x1 = x + y @ wo.t()
    g, u = (rms(x1, g0) @ wgu.t()).chunk(2, -1)
    x2 = x1 + (F.silu(g) * u) @ wd.t()
    return x2, rope(rms(x2, g1) @ wqkv.t(), cos, sin, wqkv.shape[0] * 2 // 3, head)


def head_loss(x, w, g, t):
    z = rms(x, g) @ w.t()
    return F.cross_entropy(z.float() if z.dtype == torch.bfloat16 else z, t)


def ffn(width):
    return (width * 8 // 3 + 255) // 256 * 256


def make_layer(width, tokens, head, device):
    torch.manual_seed(7)
    f, n = ffn(width), 3 * width
    rand = lambda *shape, scale=1.0: (torch.randn(*shape, device=device) * scale).to(torch.bfloat16)
    p = dict(x=rand(tokens, width), y=rand(tokens, width), wo=rand(width, width, scale=width**-0.5),
             wgu=rand(2 * f, width, scale=width**-0.5), wd=rand(width, f, scale=f**-0.5),
             wqkv=rand(n, width, scale=width**-0.5), g0=rand(width), g1=rand(width))
    position = torch.arange(tokens, device=device) % 8192
    angle = position[:, None].double() * 500000.0 ** (-torch.arange(0, head, 2, device=device).double() / head)
    unique = torch.arange(8192, device=device)[:, None].double() * 500000.0 ** (-torch.arange(0, head, 2, device=device).double() / head)
    table = torch.cat((unique.cos(), unique.sin()), 1).float().contiguous()
    gradients = (rand(tokens, width), rand(tokens, n))
    return p, angle.cos().float(), angle.sin().float(), table, position.int(), gradients


def layer_schedule(library, p, table, position, gradients, width, tokens, head, device, **options):
    f = ffn(width)
    inputs = dict(x=p["x"], y=p["y"], Wo=p["wo"], Wg=p["wgu"][:f], Wu=p["wgu"][f:], Wd=p["wd"], Wq=p["wqkv"][:width],
                  Wk=p["wqkv"][width:2 * width], Wv=p["wqkv"][2 * width:], g0=p["g0"], g1=p["g1"], table=table,
                  pos=position, dX=gradients[0], dQKV=gradients[1])
    dims = dict(M=tokens, A=width, D=width, F=f, Q=width, E=width, P=8192, H=head)
    return Schedule(library, library.standard_block("llama3"), dims, inputs, device, keep_saved=1, overwrite=1, **options)


def layer_results(s):
    """Ours, in the order of PyTorch's results and gradients."""
    d = s.data
    return dict(x2=d["X"], qkv=d["QKV"], dx=d["dx"], dy=d["dy"], dwo=d["dWo"], dwgu=torch.cat((d["dWg"], d["dWu"])),
                dwd=d["dWd"], dwqkv=d["dWq_Wk_Wv"], dg0=d["dg0"], dg1=d["dg1"])


def torch_layer_results(p, cos, sin, gradients, head, dtype):
    q = {k: v.to(dtype).detach().requires_grad_() for k, v in p.items()}
    out = layer(*q.values(), cos.to(torch.float64 if dtype == torch.float64 else torch.float32),
                sin.to(torch.float64 if dtype == torch.float64 else torch.float32), head)
    order = ["x", "y", "wo", "wgu", "wd", "wqkv", "g0", "g1"]
    grads = dict(zip(order, torch.autograd.grad(out, [q[k] for k in order], [g.to(dtype) for g in gradients])))
    return dict(x2=out[0].detach(), qkv=out[1].detach(), dx=grads["x"], dy=grads["y"], dwo=grads["wo"], dwgu=grads["wgu"],
                dwd=grads["wd"], dwqkv=grads["wqkv"], dg0=grads["g0"], dg1=grads["g1"])


def compare(what, width, ours, theirs, exact):
    worst = 0.0
    rows = {}
    for name, reference in exact.items():
        norm = reference.double().norm()
        a = ((ours[name].double() - reference.double()).norm() / norm).item()
        b = ((theirs[name].double() - reference.double()).norm() / norm).item()
        rows[name] = [float(f"{a:.3g}"), float(f"{b:.3g}")]
        worst = max(worst, a / b if a == a else float("inf"))
    good = worst <= 1.25
    print(json.dumps(dict(row="check", what=what, width=width, errors=rows, worst_ratio=round(worst, 3), good=good)), flush=True)
    return good


# ---------------------------------------------------------------- time

class Clock:
    def __init__(self, device, rounds):
        self.cuda, self.rounds = device == "cuda", rounds
        self.buffer = torch.empty(64 << 20, dtype=torch.float32, device=device) if self.cuda else None

    def once(self, f):
        if not self.cuda:
            start = time.perf_counter(); f()
            return (time.perf_counter() - start) * 1e3
        self.buffer.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record()
        return a, b

    def interleaved(self, variants):
        """Medians of rounds, each in an order of its own: what ran before moves a result by several per cent."""
        times, order = {k: [] for k in variants}, random.Random(1)
        for i in range(self.rounds + 2):
            for k in order.sample(list(variants), len(variants)):
                t = self.once(variants[k])
                if i >= 2:
                    times[k].append(t)
        if self.cuda:
            torch.cuda.synchronize()
            times = {k: [a.elapsed_time(b) for a, b in v] for k, v in times.items()}
        return {k: statistics.median(v) for k, v in times.items()}

    def peak(self, f):
        if not self.cuda:
            return 0
        torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        keep = f()
        torch.cuda.synchronize()
        del keep
        return torch.cuda.max_memory_allocated() - before


def wrap(mode):
    return {"eager": lambda f: f, "compile": lambda f: torch.compile(f, dynamic=False),
            "autotune": lambda f: torch.compile(f, dynamic=False, mode="max-autotune-no-cudagraphs")}[mode]


def report(what, width, phase, ms, memory):
    base = ms["coda"]
    row = dict(row="time", what=what, width=width, phase=phase, ms={k: round(v, 4) for k, v in ms.items()},
               speedup={k: round(v / base, 4) for k, v in ms.items() if k != "coda"}, memory=memory)
    if "products" in ms:
        row["to_products"] = round(base / ms["products"], 4)
    print(json.dumps(row), flush=True)


def products(p, gradients):
    """The layer's bare products through torch.mm: forward, and dgrads with wgrads (bf16, not accumulated)."""
    x, y = p["x"], p["y"]
    m, f = x.shape[0], p["wd"].shape[1]
    h = torch.randn(m, f, device=x.device).to(torch.bfloat16)
    dgu = torch.randn(m, 2 * f, device=x.device).to(torch.bfloat16)
    dx, dqkv = gradients
    forward = [(y, p["wo"].t()), (x, p["wgu"].t()), (h, p["wd"].t()), (x, p["wqkv"].t())]
    backward = [(dqkv, p["wqkv"]), (dqkv.t(), x), (dx, p["wd"]), (dx.t(), h), (dgu, p["wgu"]), (dgu.t(), x), (dx, p["wo"]), (dx.t(), y)]
    outs = {(a.shape[0], b.shape[1]): None for a, b in forward + backward}
    for shape in outs:
        outs[shape] = torch.empty(shape, dtype=torch.bfloat16, device=x.device)

    def run(pairs):
        for a, b in pairs:
            torch.mm(a, b, out=outs[(a.shape[0], b.shape[1])])
    return (lambda: run(forward)), (lambda: run(backward))


def bench_layer(library, clock, width, args):
    head = 128 if width >= 1024 else 32
    p, cos, sin, table, position, gradients = make_layer(width, args.tokens, head, args.device)
    s = layer_schedule(library, p, table, position, gradients, width, args.tokens, head, args.device)
    bare = products(p, gradients)
    forward = {"coda": lambda: s.launch(FORWARD), "products": bare[0]}
    backward = {"coda": lambda: s.launch(BACKWARD), "products": bare[1]}
    memory, keep, schedules = {"coda": s.memory}, [], [s]
    for also in args.also.split(",") if args.also else []:
        options = dict(join=-1) if also == "apart" else dict(save=also.encode())
        other = layer_schedule(library, p, table, position, gradients, width, args.tokens, head, args.device, **options)
        schedules.append(other)
        forward[f"coda {also}"] = lambda other=other: other.launch(FORWARD)
        backward[f"coda {also}"] = lambda other=other: other.launch(BACKWARD)
        memory[f"coda {also}"] = other.memory
    for other in schedules:
        other.launch(FORWARD); other.launch(BACKWARD)
    for mode in args.modes.split(",") if args.modes else []:
        torch._dynamo.reset()
        f, q = wrap(mode)(layer), [v.detach().requires_grad_() for v in p.values()]

        def without_gradients(f=f):
            with torch.no_grad():
                return f(*p.values(), cos, sin, head)
        forward[mode] = without_gradients
        out = f(*q, cos, sin, head)
        backward[mode] = lambda out=out, q=q: torch.autograd.grad(out, q, gradients, retain_graph=True)
        keep.append((out, q))
        memory[mode] = clock.peak(lambda f=f, q=q: torch.autograd.grad(f(*q, cos, sin, head), q, gradients))
    report("layer", width, "forward", clock.interleaved(forward), memory)
    report("layer", width, "backward", clock.interleaved(backward), memory)
    for other in schedules:
        other.free()


def check_layer(library, width, args):
    tokens, head = args.check_tokens, 128 if width >= 1024 else 32
    p, cos, sin, table, position, gradients = make_layer(width, tokens, head, args.device)
    s = layer_schedule(library, p, table, position, gradients, width, tokens, head, args.device)
    s.launch(FORWARD); s.launch(BACKWARD)
    good = compare("layer", width, layer_results(s), torch_layer_results(p, cos, sin, gradients, head, torch.bfloat16),
                   torch_layer_results(p, cos, sin, gradients, head, torch.float64))
    s.free()
    return good


# ---------------------------------------------------------------- the head

def make_head(width, tokens, vocabulary, device):
    torch.manual_seed(9)
    rand = lambda *shape, scale=1.0: (torch.randn(*shape, device=device) * scale).to(torch.bfloat16)
    return (rand(tokens, width), rand(vocabulary, width, scale=width**-0.5), rand(width),
            torch.randint(vocabulary, (tokens,), device=device))


def head_schedule(library, x, w, g, t, chunk, device, exponentials=0):
    tokens, width = x.shape
    inputs = dict(x=x, W=w, g=g, t=t.int(), dce=torch.full((tokens,), 1.0 / tokens, device=device))
    options = dict(together=1, allow_passes=1, overwrite=1, wide_axis=b"V", chunk_rows=chunk, wide_bytes=tokens * w.shape[0] * 2,
                   exponentials=exponentials)
    return Schedule(library, library.parse(HEAD), dict(M=tokens, D=width, V=w.shape[0]), inputs, device, **options)


def torch_head_results(x, w, g, t, dtype):
    q = [v.to(dtype).detach().requires_grad_() for v in (x, w, g)]
    loss = head_loss(*q, t)
    dx, dw, dg = torch.autograd.grad(loss, q)
    return dict(loss=loss.detach().reshape(1), dx=dx, dw=dw, dg=dg)


def check_head(library, width, args):
    x, w, g, t = make_head(width, args.check_tokens, args.vocabulary, args.device)
    s = head_schedule(library, x, w, g, t, args.chunk if args.chunk < args.check_tokens else 0, args.device)
    s.launch(FORWARD | BACKWARD)
    ours = dict(loss=s.data["ce"].double().mean().reshape(1), dx=s.data["dx"], dw=s.data["dW"], dg=s.data["dg"])
    exact, theirs = torch_head_results(x, w, g, t, torch.float64), torch_head_results(x, w, g, t, torch.bfloat16)
    loss = (abs(ours.pop("loss") - exact["loss"]) / exact.pop("loss")).item()
    s.free()
    return compare("head", width, ours, theirs, exact) and loss < 1e-3


def bench_head(library, clock, width, args):
    x, w, g, t = make_head(width, args.tokens, args.vocabulary, args.device)
    s = head_schedule(library, x, w, g, t, args.chunk, args.device)
    by_pass = head_schedule(library, x, w, g, t, args.chunk, args.device, -1)
    h = torch.empty(args.tokens, args.vocabulary, dtype=torch.bfloat16, device=args.device)
    dx, dw = torch.empty_like(x), torch.empty_like(w)

    def bare():
        torch.mm(x, w.t(), out=h); torch.mm(h, w, out=dx); torch.mm(h.t(), x, out=dw)
    variants = {"coda": lambda: s.launch(FORWARD | BACKWARD), "coda, a pass over the logits": lambda: by_pass.launch(FORWARD | BACKWARD),
                "products": bare}
    memory = {"coda": s.memory, "coda, a pass over the logits": by_pass.memory, "logits": h.numel() * 2}
    for mode in args.modes.split(",") if args.modes else []:
        torch._dynamo.reset()
        f, q = wrap(mode)(head_loss), [v.detach().requires_grad_() for v in (x, w, g)]
        run = lambda f=f, q=q: torch.autograd.grad(f(*q, t), q)
        run()
        memory[mode] = clock.peak(run)
        variants[mode] = run
    report("head", width, "forward and backward", clock.interleaved(variants), memory)
    s.free()
    by_pass.free()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", default="2048,4096,8192")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--check-tokens", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--what", default="layer,head")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chunk", type=int, default=0, help="rows of logits at once; 0: what one bf16 matrix of them holds")
    parser.add_argument("--also", default="", help="other schedules of the layer: apart (no launch of several products), names to keep (y1)")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    library, good = Library(args.library, args.device), True
    clock = Clock(args.device, args.rounds)
    torch._dynamo.config.cache_size_limit = 256
    torch._functorch.config.donated_buffer = False  # the backward is timed with the graph retained
    print(library.lib.coda_device_description(library.device).decode(), file=sys.stderr)
    for width in map(int, args.width.split(",")):
        for what in args.what.split(","):
            check, bench = {"layer": (check_layer, bench_layer), "head": (check_head, bench_head)}[what]
            if not args.no_check:
                good &= check(library, width, args)
            if not args.check_only:
                bench(library, clock, width, args)
            if args.device == "cuda":
                torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
