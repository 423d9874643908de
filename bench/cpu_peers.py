#!/usr/bin/env python3
"""Times the CPU device beside PyTorch (oneDNN, torch.compile) and OpenBLAS: same mathematics, same threads, one process.

    python3 bench/cpu_peers.py [--sections gemm,programs,layer,train] [--threads 2] [--rounds 9] [--json]

Every variant is checked against float64 first (its error is printed), then all take turns, in an order that rotates, and
medians are compared. "ratio" is the peer's time over ours: above 1, ours is faster. A turn begins with a pause, in which
the other libraries' threads stop waiting actively, and with runs that are not timed, at least one.

gemm       bare products in bf16 and f32: ours, torch (oneDNN or MKL), numpy (OpenBLAS, f32)
programs   the standard programs beside eager PyTorch and torch.compile of the same outs
layer      all of a Llama layer but attention, forward and backward with every gradient, at 2048 tokens
train      a training step (forward, backward, clipping, AdamW) beside a PyTorch model with SDPA and torch.compile, from
           the same weights on the same samples: tokens a second, and both losses at the last step

Pin the process (taskset -c 0,1, or --pin 0,1, which leaves compiling every processor) where other work runs. CODA_CPU
chooses our instruction set, ONEDNN_MAX_CPU_ISA oneDNN's. torch.compile has one graph for a layer, whatever their number.
"""
import argparse, ctypes, json, math, os, statistics, sys, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--sections", default="gemm,programs,layer,train")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--pin", help="processors for everything that is timed, after compiling: 0,1")
parser.add_argument("--warm", type=float, default=100, help="ms of untimed runs after it: a core speeds up in tens of them")
parser.add_argument("--pause", type=float, default=60, help="ms before a turn: OpenBLAS's threads wait actively for some 30")
parser.add_argument("--cpu-time", action="store_true", help="of the process instead of the clock's: one thread on a busy machine")
parser.add_argument("--library", default=os.path.join(os.path.dirname(__file__), "..", "build", "libcoda.so"))
parser.add_argument("--dtypes", default="bf16,f32", help="of the bare products, and of PyTorch's layer and training step (ours: bf16)")
parser.add_argument("--shapes", default="2048x1024x1024,2048x2048x2048,2048x11264x2048,2048x2048x5632,4096x4096x4096",
                    help="of the bare products, MxNxK")
parser.add_argument("--widths", default="1024,2048", help="of the layer")
parser.add_argument("--models", default="demo,1024", help="demo: `make demo`'s; 1024: width 1024, 8 layers, sequence 512")
parser.add_argument("--steps", type=int, default=8, help="training steps of each variant")
parser.add_argument("--data", help="text to train on (this repository's sources)")
parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
parser.add_argument("--json", action="store_true", help="one object a row")
args = parser.parse_args()
for name in ("CODA_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(args.threads)

import numpy
import torch
import torch.nn.functional as F
from structures import BF16, F32, I32, Dim, Dims, Error, Tensor

torch.set_num_threads(args.threads)
TORCH = {F32: torch.float32, BF16: torch.bfloat16, I32: torch.int32}
CODE = {torch.float32: F32, torch.bfloat16: BF16, torch.int32: I32}
TOKENS, RUN = 2048, 128


# ---------------------------------------------------------------- the library

class Report(ctypes.Structure):
    _fields_ = [("step", ctypes.c_int64), ("loss", ctypes.c_double), ("gradient_norm", ctypes.c_double),
                ("learning_rate", ctypes.c_double), ("tokens", ctypes.c_int64)]


class Coda:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.coda_module_find.restype = ctypes.c_void_p
        self.lib.coda_device_description.restype = ctypes.c_char_p
        self.device, self.modules, self.kernels = ctypes.c_void_p(), {}, {}
        self.call("coda_device_open", b"cpu", ctypes.byref(self.device))
        standard, f32 = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("coda_standard_module", ctypes.byref(standard))
        self.call("coda_module_retype", standard, BF16, F32, ctypes.byref(f32))
        self.modules = {torch.bfloat16: standard, torch.float32: f32}

    def call(self, function, *arguments):
        error = Error()
        if getattr(self.lib, function)(*arguments, ctypes.byref(error)):
            raise RuntimeError(f"{function}: {error.message.decode()}")

    def description(self):
        return self.lib.coda_device_description(self.device).decode()

    def kernel(self, program, dtype=torch.bfloat16, **fixed):
        key = (program, dtype, tuple(fixed.items()))
        if key not in self.kernels:
            dims, kernel = Dims(len(fixed)), ctypes.c_void_p()
            for i, (axis, size) in enumerate(fixed.items()):
                dims.item[i] = Dim(axis.encode(), size)
            found = self.lib.coda_module_find(self.modules[dtype], program.encode())
            self.call("coda_kernel_create", self.device, ctypes.c_void_p(found), ctypes.byref(dims), None,
                      ctypes.byref(kernel))
            self.kernels[key] = kernel
        return self.kernels[key]

    def prepare(self, program, tensors, parameters=None, dtype=torch.bfloat16, **fixed):
        """A launch, ready to run; the tensors live as long as it does."""
        kernel, operands = self.kernel(program, dtype, **fixed), (Tensor * len(tensors))()
        for i, t in enumerate(tensors):
            shape = (ctypes.c_int64 * 2)(*t.shape)
            operands[i] = Tensor(t.data_ptr(), CODE[t.dtype], t.dim(), shape, t.stride(0) if t.dim() == 2 else 0)
        values = (ctypes.c_double * len(parameters))(*parameters) if parameters else None
        return lambda keep=tensors: self.call("coda_kernel_launch", kernel, operands, len(operands), values, None)


# ---------------------------------------------------------------- measuring

def pin():
    """Every thread of the process, of whichever library, to the processors of --pin."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), {int(c) for c in args.pin.split(",")})


now = time.process_time if args.cpu_time else time.perf_counter


def take_turns(variants, rounds):
    """Medians in ms. The runs that are not timed find caches full of other data, and cores that have slowed down."""
    times = {name: [] for name in variants}
    names = list(variants)
    everywhere = os.sched_getaffinity(0)
    for name in names:
        variants[name]()
    if args.pin:
        pin()
    for i in range(rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            time.sleep(args.pause * 1e-3)
            awake = time.perf_counter() + args.warm * 1e-3
            variants[name]()
            while time.perf_counter() < awake:
                variants[name]()
            start = now()
            variants[name]()
            times[name].append((now() - start) * 1e3)
    if args.pin:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), everywhere)
    return {name: statistics.median(t) for name, t in times.items()}


def error_of(found, exact):
    """Largest over the results of |found - exact| / |exact|."""
    worst = 0.0
    for f, e in zip(found, exact):
        difference = (f.detach().double() - e.detach()).norm() / e.detach().norm().clamp_min(1e-30)
        worst = max(worst, float(difference)) if math.isfinite(float(difference)) else math.inf
    return worst


def emit(section, name, shape, dtype, ms, errors, **more):
    ours = ms["coda"]
    row = dict(section=section, name=name, shape=shape, dtype=dtype, threads=args.threads, instruction_set=ISA,
               ms={k: round(v, 3) for k, v in ms.items()}, err=errors,
               ratio={k: round(v / ours, 3) for k, v in ms.items() if k != "coda"}, **more)
    if args.json:
        print(json.dumps(row), flush=True)
        return
    parts = [f"{k} {v:.2f} ms" + (f" (x{v / ours:.2f})" if k != "coda" else "") +
             (f" err {errors[k]:.1e}" if k in errors else "") for k, v in ms.items()]
    extra = "  ".join(f"{k} {v}" for k, v in more.items())
    print(f"{section:8} {name:18} {shape:22} {dtype:4}  " + "; ".join(parts) + "  " + extra, flush=True)


def compiled(function):
    return torch.compile(function, dynamic=False)


def normal(*shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(*shape) * scale).to(dtype)


# ---------------------------------------------------------------- bare products

def gemm_section():
    for text in args.shapes.split(","):
        m, n, k = map(int, text.split("x"))
        for word in args.dtypes.split(","):
            dtype = torch.bfloat16 if word == "bf16" else torch.float32
            a, w = normal(m, k, dtype=dtype), normal(n, k, scale=k**-0.5, dtype=dtype)
            y, z = torch.full((m, n), math.nan, dtype=dtype), torch.empty(m, n, dtype=dtype)
            variants = {"coda": coda.prepare("gemm", [a, w, y], dtype=dtype), "torch": lambda: torch.mm(a, w.t(), out=z)}
            results = {"coda": y, "torch": z}
            if dtype == torch.float32:
                results["openblas"] = torch.empty(m, n)
                an, wn, zn = a.numpy(), w.numpy(), results["openblas"].numpy()
                variants["openblas"] = lambda: numpy.matmul(an, wn.T, out=zn)
            rows = torch.randperm(m)[:64]
            exact = a[rows].double() @ w.double().t()
            for run in variants.values():
                run()
            errors = {v: error_of([t[rows]], [exact]) for v, t in results.items()}
            ms = take_turns(variants, args.rounds)
            emit("gemm", "gemm", text, word, ms, errors,
                 gflops={v: round(2e-6 * m * n * k / t, 1) for v, t in ms.items()})


# ---------------------------------------------------------------- programs

def runs(x, reduce):
    return reduce(x.unflatten(-1, (-1, RUN)))


def rotate(x, table, pos, cols, head):
    """Half-split rotation of the first `cols` columns."""
    cos, sin = (t[pos.long()].unsqueeze(1) for t in table.to(x.dtype).chunk(2, -1))
    a, b = x[:, :cols].unflatten(-1, (-1, head)).chunk(2, -1)
    y = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).flatten(1)
    return torch.cat((y, x[:, cols:]), -1)


def finish(s, width):
    return torch.rsqrt(s.sum(-1, keepdim=True) / width + 1e-6)


def up(x):
    """To f32, as epilogues compute; float64 stays for the exact results."""
    return x if x.dtype == torch.float64 else x.float()


def residual_rms(a, w, c, g):
    x = up(a @ w.t()) + up(c)
    return x.to(a.dtype), runs(x * x, lambda t: t.sum(-1)), (x * up(g)).to(a.dtype)


def rms_swiglu(h, wg, wu, s):
    r = finish(s, h.shape[1])
    g, u = up(h @ wg.t()) * r, up(h @ wu.t()) * r
    return g.to(h.dtype), u.to(h.dtype), r[:, 0], (F.silu(g) * u).to(h.dtype)


def rms_rope(h, wq, wk, wv, s, table, pos):
    r = finish(s, h.shape[1])
    z = up(torch.cat((h @ wq.t(), h @ wk.t(), h @ wv.t()), -1)) * r
    return rotate(z, table, pos, wq.shape[0] + wk.shape[0], table.shape[1]).to(h.dtype), r[:, 0]


def rms_lse(h, w, s, t):
    r = finish(s, h.shape[1])
    z = up(h @ w.t()) * r
    picked = z.gather(1, t.long().unsqueeze(1))[:, 0]
    return z.to(h.dtype), runs(z, lambda x: x.logsumexp(-1)), picked, runs(z, lambda x: x.sum(-1)), r[:, 0]


def swiglu_bwd(dx, w, g, u):
    d, G, U = up(dx @ w), up(g), up(u)
    s = torch.sigmoid(G)
    dg, du = d * U * (s + G * s * (1 - s)), d * G * s
    return dg.to(dx.dtype), du.to(dx.dtype), runs(G * dg + U * du, lambda t: t.sum(-1)), (G * s * U).to(dx.dtype)


def rms_bwd(dz, w, x, g, r, c, dr):
    d, xn = up(dz @ w), up(x) * r.unsqueeze(1)
    s = c.sum(-1, keepdim=True) / x.shape[1]
    dx = up(dr) + (d * up(g) - xn * s) * r.unsqueeze(1)
    return dx.to(dz.dtype), (xn * up(g)).to(dz.dtype), (d * xn).unflatten(0, (-1, 64)).sum(1)


def program_rows(k):
    """name, ins in order, function, fixed axes, parameters; outs follow from the function"""
    m, n, f, e, v, head = TOKENS, k, k * 11 // 4, k // 4, 8192, 64
    a, s, r = normal(m, k), torch.rand(m, k // RUN) * 64 + 96, torch.rand(m) * 0.2 + 0.9
    table, pos = torch.randn(512, head), torch.arange(m, dtype=torch.int32) % 512
    w = lambda rows, columns, fan: normal(rows, columns, scale=fan**-0.5)
    return [
        ("gemm_residual_rms", [a, w(n, k, k), normal(m, n), normal(n)], residual_rms, {}, None),
        ("gemm_rms_swiglu", [a, w(f, k, k), w(f, k, k), s], rms_swiglu, {}, None),
        ("gemm_rms_rope", [a, w(n, k, k), w(e, k, k), w(e, k, k), s, table, pos], rms_rope, {"D": head, "T": n + e}, None),
        ("gemm_rms_lse", [a, w(v, k, k), s, torch.randint(0, v, (m,), dtype=torch.int32)], rms_lse, {"V": v}, None),
        ("gemm_swiglu_bwd", [a, w(k, f, k), normal(m, f), normal(m, f)], swiglu_bwd, {}, None),
        ("gemm_rms_bwd", [a, w(k, n, k), normal(m, n), normal(n), r, normal(m, k // RUN, dtype=torch.float32),
                          normal(m, n)], rms_bwd, {}, None),
    ]


def programs_section():
    for name, ins, function, fixed, parameters in program_rows(1024):
        eager = lambda: function(*ins)
        outs = [torch.full_like(t, math.nan).contiguous() for t in eager()]
        ours = coda.prepare(name, ins + outs, parameters, **{k: v for k, v in fixed.items() if k != "T"})
        exact = function(*(t.double() if t.is_floating_point() else t for t in ins))
        ours()
        errors = {"coda": error_of(outs, exact), "eager": error_of(eager(), exact)}
        variants = {"coda": ours, "eager": eager}
        if not args.no_compile:
            fast = compiled(function)
            errors["compile"] = error_of(fast(*ins), exact)
            variants["compile"] = lambda: fast(*ins)
        emit("programs", name, f"M={TOKENS},K=1024", "bf16", take_turns(variants, args.rounds), errors)


# ---------------------------------------------------------------- a layer

def rms_norm(x, g):
    return F.rms_norm(x, (x.shape[-1],), g, 1e-6)


def torch_layer(wo, g0, wg, wu, wd, g1, wq, wk, wv, table, pos, y0, x0):
    x1 = x0 + y0 @ wo.t()
    h1 = rms_norm(x1, g0)
    x2 = x1 + (F.silu(h1 @ wg.t()) * (h1 @ wu.t())) @ wd.t()
    h2 = rms_norm(x2, g1)
    qkv = torch.cat((h2 @ wq.t(), h2 @ wk.t(), h2 @ wv.t()), -1)
    return x2, rotate(qkv, table, pos, wq.shape[0] + wk.shape[0], table.shape[1])


class Layer:
    """Our layer: the standard programs in order; buffers made once."""

    def __init__(self, weights, table, pos, y0, x0, dx2, dqkv):
        wo, g0, wg, wu, wd, g1, wq, wk, wv = weights
        d, f, e, q, m = wo.shape[0], wg.shape[0], wk.shape[0], wq.shape[0], y0.shape[0]
        n, head = q + 2 * e, table.shape[1]
        b = lambda *shape: torch.full(shape, math.nan, dtype=torch.bfloat16)
        s = lambda *shape: torch.full(shape, math.nan)
        self.dw = [torch.zeros(w.shape) for w in weights]
        dwo, dg0, dwg, dwu, dwd, dg1, dwq, dwk, dwv = self.dw
        x1, h1, g, u, y1, x2, h2, qkv = b(m, d), b(m, d), b(m, f), b(m, f), b(m, f), b(m, d), b(m, d), b(m, n)
        s1, s2, r1, r2 = s(m, d // RUN), s(m, d // RUN), s(m), s(m)
        dz2, c2, dx, h2b, p1, c1 = b(m, n), s(m, n // RUN), b(m, d), b(m, d), s(m // 64, d), s(m, f // RUN)
        dg, du, y1b, dx0, h1b, p0, dy0 = b(m, f), b(m, f), b(m, f), b(m, d), b(m, d), s(m // 64, d), b(m, d)
        p = coda.prepare
        self.forward = [
            p("gemm_residual_rms", [y0, wo, x0, g0, x1, s1, h1]),
            p("gemm_rms_swiglu", [h1, wg, wu, s1, g, u, r1, y1]),
            p("gemm_residual_rms", [y1, wd, x1, g1, x2, s2, h2]),
            p("gemm_rms_rope", [h2, wq, wk, wv, s2, table, pos, qkv, r2], D=head),
        ]
        self.backward = [
            p("rope_bwd", [dqkv, qkv, table, pos, dz2, c2], D=head, T=q + e),
            p("gemm_rms_bwd_qkv", [dz2, wq, wk, wv, x2, g1, r2, c2, dx2, dx, h2b, p1]),
            p("gemm_wgrad", [dz2[:, :q], h2b, dwq]), p("gemm_wgrad", [dz2[:, q:q + e], h2b, dwk]),
            p("gemm_wgrad", [dz2[:, q + e:], h2b, dwv]), p("column_sum", [p1, dg1]),
            p("gemm_swiglu_bwd", [dx, wd, g, u, dg, du, c1, y1b]),
            p("gemm_wgrad", [dx, y1b, dwd]),
            p("gemm_rms_bwd_twin", [dg, du, wg, wu, x1, g0, r1, c1, dx, dx0, h1b, p0]),
            p("gemm_wgrad", [dg, h1b, dwg]), p("gemm_wgrad", [du, h1b, dwu]), p("column_sum", [p0, dg0]),
            p("gemm_dgrad", [dx0, wo, dy0]), p("gemm_wgrad", [dx0, y0, dwo]),
        ]
        self.results = [x2, qkv, *self.dw, dy0, dx0]

    def __call__(self):
        for launch in self.forward + self.backward:
            launch()


def layer_section():
    for d in map(int, args.widths.split(",")):
        f, e, head = (d * 11 // 4 + 127) // 128 * 128, max(64, d // 4), 64
        shapes = [(d, d), (d,), (f, d), (f, d), (d, f), (d,), (d, d), (e, d), (e, d)]
        weights = [normal(*s, scale=s[1]**-0.5) if len(s) == 2 else 1 + normal(*s, scale=0.1) for s in shapes]
        angles = torch.arange(512).unsqueeze(1) * 10000.0 ** (-torch.arange(head // 2) / (head // 2))
        table, pos = torch.cat((angles.cos(), angles.sin()), -1), torch.arange(TOKENS, dtype=torch.int32) % 512
        y0, x0, dx2, dqkv = normal(TOKENS, d), normal(TOKENS, d), normal(TOKENS, d), normal(TOKENS, d + 2 * e)

        def torch_step(function, inputs, grads):
            outs = function(*inputs[:9], table.to(inputs[0].dtype), pos, *inputs[9:])
            return [*outs, *torch.autograd.grad(outs, inputs, grads)]

        leaves = lambda dtype: [t.to(dtype).requires_grad_() for t in (*weights, y0, x0)]
        exact = torch_step(torch_layer, leaves(torch.float64), [dx2.double(), dqkv.double()])
        ours = Layer(weights, table, pos, y0, x0, dx2, dqkv)
        ours()
        variants, errors = {"coda": ours}, {"coda": error_of(ours.results, exact)}
        fast = None if args.no_compile else compiled(torch_layer)
        for word in args.dtypes.split(","):
            dtype = torch.bfloat16 if word == "bf16" else torch.float32
            inputs, grads = leaves(dtype), [dx2.to(dtype), dqkv.to(dtype)]
            for how, function in (("eager", torch_layer), ("compile", fast)):
                if function:
                    run = lambda function=function, inputs=inputs, grads=grads: torch_step(function, inputs, grads)
                    variants[f"{how} {word}"], errors[f"{how} {word}"] = run, error_of(run(), exact)
        flops = 6 * TOKENS * (2 * d * d + 3 * d * f + 2 * d * e)
        ms = take_turns(variants, args.rounds)
        emit("layer", "forward+backward", f"width {d}, {TOKENS} tokens", "bf16", ms, errors,
             gflops={v: round(flops / t * 1e-6, 1) for v, t in ms.items()})


# ---------------------------------------------------------------- training

MODELS = {
    "demo": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, head_dim=32, vocab_size=256, max_position_embeddings=256, batch=4, sequence=256),
    "1024": dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
                 num_key_value_heads=4, head_dim=64, vocab_size=256, max_position_embeddings=512, batch=4, sequence=512),
}
RECIPE = dict(learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, epsilon=1e-8, clip=1.0, warmup=4, seed=1,
              minimum_rate=1.0, steps=1000)


def mix64(x):
    mask = (1 << 64) - 1
    x = (x + 0x9e3779b97f4a7c15) & mask
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & mask
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & mask
    return x ^ (x >> 31)


def sample(data, seed, number, length):
    """The window that coda_trainer_step takes as its sample `number` (src/model/data.c)."""
    starts = len(data) - length
    windows = max(1, starts // length)
    room = min(length, starts - (windows - 1) * length)
    key = mix64(seed ^ mix64(number // windows))
    shift = int((mix64(mix64(key) ^ 1) >> 11) * 2.0**-53 * room)
    half = 1
    while half < 31 and 1 << (2 * half) < windows:
        half += 1
    x, mask = number % windows, (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for i in range(4):
            left, right = right, left ^ (mix64(key ^ mix64(right + (i << 40))) & mask)
        x = left << half | right
        if x < windows:
            break
    first = x * length + shift
    return torch.from_numpy(data[first:first + length + 1].astype(numpy.int64))


class Trainer:
    """coda_trainer through ctypes."""

    def __init__(self, model, path):
        self.config = ctypes.create_string_buffer(1 << 16)
        coda.lib.coda_train_config_defaults(self.config)
        for key, value in {**model, **RECIPE, "data": path, "data_format": "bytes", "dtype": "bf16"}.items():
            coda.call("coda_train_config_set", self.config, key.encode(), str(value).encode())
        coda.call("coda_train_config_check", self.config)
        self.llama, self.trainer, self.report = ctypes.c_void_p(), ctypes.c_void_p(), Report()
        coda.call("coda_llama_create", coda.device, self.config, BF16, ctypes.c_uint64(RECIPE["seed"]),
                  ctypes.byref(self.llama))
        coda.call("coda_trainer_create", self.llama, self.config, ctypes.byref(self.trainer))

    def weights(self):
        found = {}
        for i in range(coda.lib.coda_llama_tensor_count(self.llama)):
            name, t = ctypes.c_char_p(), Tensor()
            coda.call("coda_llama_tensor", self.llama, i, ctypes.byref(name), ctypes.byref(t))
            shape = list(t.shape[:t.rank])
            memory = (ctypes.c_uint16 * math.prod(shape)).from_address(t.data)
            found[name.value.decode()] = torch.frombuffer(memory, dtype=torch.bfloat16).view(shape).clone()
        return found

    def step(self):
        coda.call("coda_trainer_step", self.trainer, ctypes.byref(self.report))
        return self.report.loss


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def llama_layer(x, cos, sin, norm1, wq, wk, wv, wo, norm2, wg, wu, wd):
    h, head = rms_norm(x, norm1), 2 * cos.shape[-1]
    q, k, v = (F.linear(h, w).unflatten(-1, (-1, head)).transpose(1, 2) for w in (wq, wk, wv))
    y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True)
    x = x + F.linear(y.transpose(1, 2).flatten(2), wo)
    h = rms_norm(x, norm2)
    return x + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)


def llama_loss(x, norm, embedding, targets):
    z = F.linear(rms_norm(x, norm), embedding)
    return F.cross_entropy(z.flatten(0, 1).float(), targets.flatten())


LAYER = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class TorchLlama(torch.nn.Module):
    def __init__(self, model, weights):
        super().__init__()
        self.layer, self.loss = (f if args.no_compile else compiled(f) for f in (llama_layer, llama_loss))
        self.model, self.names = model, list(weights)
        self.weight = torch.nn.ParameterList([torch.nn.Parameter(w) for w in weights.values()])
        head = model["head_dim"]
        angles = torch.arange(model["sequence"]).unsqueeze(1) * 10000.0 ** (-torch.arange(head // 2) / (head // 2))
        self.register_buffer("cos", angles.cos()), self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        w = dict(zip(self.names, self.weight))
        x = F.embedding(tokens, w["model.embed_tokens.weight"])
        for i in range(self.model["num_hidden_layers"]):
            x = self.layer(x, self.cos, self.sin, *(w[f"model.layers.{i}.{name}.weight"] for name in LAYER))
        return self.loss(x, w["model.norm.weight"], w["model.embed_tokens.weight"], targets)


class TorchTrainer:
    """Weights and activations in `dtype`, f32 masters and moments, fused AdamW."""

    def __init__(self, model, weights, data, dtype):
        self.model, self.data, self.done = model, data, 0
        self.llama = TorchLlama(model, {n: w.to(dtype) for n, w in weights.items()})
        self.parameters = list(self.llama.parameters())
        self.masters = [p.detach().float().clone() for p in self.parameters]
        groups = [dict(params=[m for m in self.masters if (m.dim() == 2) == matrix],
                       weight_decay=RECIPE["weight_decay"] if matrix else 0.0) for matrix in (True, False)]
        self.adam = torch.optim.AdamW(groups, lr=1.0, betas=(RECIPE["beta1"], RECIPE["beta2"]), eps=RECIPE["epsilon"],
                                      fused=True)

    def step(self):
        b, length = self.model["batch"], self.model["sequence"]
        rows = torch.stack([sample(self.data, RECIPE["seed"], self.done * b + i, length) for i in range(b)])
        loss = self.llama(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        for m, p in zip(self.masters, self.parameters):
            m.grad = p.grad.float()
            p.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, RECIPE["clip"])
        for group in self.adam.param_groups:
            group["lr"] = RECIPE["learning_rate"] * min(1, (self.done + 1) / RECIPE["warmup"])
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
        self.done += 1
        return float(loss.detach())


def train_section():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    path = args.data
    if not path:
        path = f"/tmp/coda-peers-{os.getpid()}.txt"
        with open(path, "wb") as out:
            for folder in ("docs", "include", "src", "cli", "programs"):
                for base, _, files in sorted(os.walk(os.path.join(root, folder))):
                    for file in sorted(files):
                        out.write(open(os.path.join(base, file), "rb").read())
    data = numpy.fromfile(path, dtype=numpy.uint8)
    for name in args.models.split(","):
        model = MODELS[name]
        ours = Trainer(model, path)
        weights = ours.weights()
        variants, losses = {"coda": ours.step}, {}
        for word in args.dtypes.split(","):
            dtype = torch.bfloat16 if word == "bf16" else torch.float32
            variants["torch " + word] = TorchTrainer(model, weights, data, dtype).step
        remember = lambda name, step: lambda: losses.setdefault(name, []).append(step())
        variants = {n: remember(n, s) for n, s in variants.items()}
        ms = take_turns(variants, args.steps)
        tokens = model["batch"] * model["sequence"]
        emit("train", name, f"{tokens} tokens a step", "bf16", ms, {},
             tokens_per_second={v: round(tokens / t * 1e3) for v, t in ms.items()},
             first_loss={v: round(x[0], 4) for v, x in losses.items()},
             last_loss={v: round(x[-1], 4) for v, x in losses.items()})
    if not args.data:
        os.remove(path)


coda = Coda(args.library)
lines = coda.description().split("\n")
ISA = lines[0].split(",")[0].replace("instruction set ", "")
torch.manual_seed(1)
if not args.json:
    print(f"{lines[0]}; torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), numpy {numpy.__version__}, "
          f"{args.threads} threads")
SECTIONS = {"gemm": gemm_section, "programs": programs_section, "layer": layer_section, "train": train_section}
for section in args.sections.split(","):
    if section not in SECTIONS:
        sys.exit(f"no section {section}; there are {', '.join(SECTIONS)}")
    SECTIONS[section]()
