"""The package without torch: modules, programs, devices, kernels, arrays."""

import array
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import coda


def f32(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("f")


@pytest.fixture(scope="module")
def cpu():
    return coda.Device("cpu")


def gemm(cpu, dtype="f32"):
    module = coda.standard_module()
    return cpu.kernel((module if dtype == "bf16" else module.retype("bf16", dtype))["gemm"])


def test_the_standard_programs_describe_themselves():
    module = coda.standard_module()
    program = module["gemm_rms_rope"]
    assert program.axes["D"] == "fixed" and program.axes["N"] == "derived" and program.parameters == {"eps": 1e-6}
    assert program.operands[0] == coda.Operand("H", "in", "bf16", ("M", "K"))
    assert program.operands[-1].role == "out" and not program.is_block
    assert coda.Module.parse(program.text)[0].text == program.text
    assert program.shape("S", M=3, K=300) == (3, 3)
    assert program.cost(M=2, K=3, Q=4, E=4, D=4, P=5)["flops"] == 2 * 2 * 3 * 12
    assert len(module) == len(list(module)) and "gemm" in repr(module)


def test_the_compiler():
    module = coda.standard_module()
    names = [p.name for p in module["gemm"].differentiate(wrt=["A"])]
    assert names == ["gemm_bwd_dA"]
    block = coda.Module.parse("""block b {
        in x : f32[M, D]; in g : f32[D]; in W : f32[N, D]
        out Y : f32[M, N] = rmsnorm(x, g, 1e-6) @ W.T
    }""")["b"]
    programs, report = block.rewrite()
    assert len(programs) == 2 and "deferred scale" in report
    assert len(module["gemm_swiglu"].unfuse()) > 1


@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_a_kernel_runs_on_numpy_arrays(device):
    kernel = gemm(coda.Device(device))
    a, w, y = f32(5, 7), f32(9, 7), np.empty((5, 9), "f")
    kernel(a, w, y)
    np.testing.assert_allclose(y, a @ w.T, rtol=1e-5, atol=1e-5)
    kernel(A=a[::2], W=w, Y=y[:3])  # rows at a distance
    np.testing.assert_allclose(y[:3], a[::2] @ w.T, rtol=1e-5, atol=1e-5)
    assert "gemm" in repr(kernel) and isinstance(kernel.source, str)


def test_a_patch_on_a_condition(cpu):
    program = coda.Module.parse("program p { in v, m : f32[M]; in t : i32[M]; when m; out X[t] : f32[M, N] = 2 * v }")["p"]
    assert program.condition == "m" and program.operands[3].role == "patch"
    kernel, x = cpu.kernel(program), np.ones((3, 4), "f")
    v, t, none, some = np.arange(3, dtype="f"), np.array([1, -1, 3], "i"), np.zeros(3, "f"), np.array([0, 0, 5], "f")
    kernel(v=v, m=none, t=t, X=x)
    assert (x == 1).all()
    kernel(v=v, m=some, t=t, X=x)
    assert x.tolist() == [[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 4]]


def test_the_buffer_protocol_and_parameters(cpu):
    program = coda.Module.parse("program scale { in x : f32[N]\n param by = 2\n out y : f32[N] = x * by }")["scale"]
    kernel = cpu.kernel(program)
    x, y = array.array("f", [1, 2, 3]), array.array("f", [0, 0, 0])
    kernel(x=x, y=y)
    assert list(y) == [2, 4, 6]
    kernel(x, y, by=-1)
    assert list(y) == [-1, -2, -3]


def test_bf16_over_integers_of_its_size(cpu):
    kernel = gemm(cpu, "bf16")
    one = np.full((2, 2), 0x3F80, np.uint16)  # 1.0
    y = np.zeros((2, 2), np.uint16)
    kernel(*(coda.Tensor(t, "bf16") for t in (one, one, y)))
    assert (y == 0x4000).all()  # 2.0


def test_memory_of_a_device(cpu):
    kernel, a, w = gemm(cpu), f32(3, 4), f32(5, 4)
    y = cpu.empty((3, 5))
    kernel(cpu.tensor(a), cpu.tensor(w), y)
    cpu.synchronize()
    back = np.empty((3, 5), "f")
    cpu.read(y, back)
    np.testing.assert_allclose(back, a @ w.T, rtol=1e-5, atol=1e-5)


def test_threads_do_not_change_results(cpu):
    kernel, a, w = gemm(cpu), f32(130, 70), f32(90, 70)
    results = []
    for threads in (1, 2, 3):
        cpu.threads = threads
        results.append(np.empty((130, 90), "f"))
        kernel(a, w, results[-1])
    assert cpu.threads == 3 and cpu.name == "cpu" and cpu.description
    assert all((r == results[0]).all() for r in results)


def test_bad_input_raises_with_the_librarys_message(cpu):
    kernel, a, w, y = gemm(cpu), f32(5, 7), f32(9, 7), np.empty((5, 9), "f")
    frozen = bytes(12)
    cases = [
        (lambda: coda.Module.parse("program x { in A : bf16[M, K] }", "x.coda"), coda.InvalidError, "x.coda:1:9: error"),
        (lambda: coda.Module.load("/no/such/file.coda"), OSError, "no/such/file"),
        (lambda: coda.Device("tpu"), coda.InvalidError, "tpu"),
        (lambda: coda.standard_module()["gemn"], KeyError, "gemn"),
        (lambda: coda.standard_module().retype("bf17", "f32"), ValueError, "no type 'bf17'"),
        (lambda: cpu.kernel(coda.standard_module()["gemm_rope"]), coda.InvalidError, "axis D"),
        (lambda: cpu.kernel(coda.standard_module()["gemm"], schedule="x", tile=(-1, 0)), coda.InvalidError, "tile"),
        (lambda: kernel(a, w[:, :6], y), coda.InvalidError, "axis K is 7"),
        (lambda: kernel(a, w), TypeError, "takes A, W, Y"), (lambda: kernel(a, w, y, y), TypeError, "takes A, W, Y"),
        (lambda: kernel(a, w, Z=y), TypeError, "takes A, W, Y"),
        (lambda: kernel(a.astype("d"), w, y), TypeError, "f32, f16 and i32"),
        (lambda: kernel(a.T, w, y), ValueError, "not adjacent"), (lambda: kernel(a, w, [1]), TypeError, "list is no array"),
        (lambda: kernel(a[None], w, y), ValueError, "3 dimensions"), (lambda: kernel(frozen, w, y), TypeError, "read-only"),
        (lambda: kernel(a, w, a), coda.InvalidError, "axis N|memory"), (lambda: coda.Tensor(a, "bf16"), ValueError, "4 bytes"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()
    assert issubclass(coda.InvalidError, ValueError) and issubclass(coda.UnsupportedError, NotImplementedError)


def run(code, **environment):
    path = os.pathsep.join([os.path.dirname(os.path.dirname(os.path.abspath(coda.__file__)))])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path, **environment})


def test_it_imports_without_torch_and_numpy():
    done = run("import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import coda; print(len(coda.standard_module()))")
    assert done.returncode == 0 and int(done.stdout) > 20, done.stderr


def test_a_missing_library_is_an_import_error_that_says_where_it_was_sought():
    done = run("import coda", CODA_LIBRARY="/no/such/libcoda.so")
    assert "ImportError" in done.stderr and "/no/such/libcoda.so" in done.stderr and "pip install ." in done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_a_library_of_another_version_is_refused(tmp_path):
    names = [n for n in coda._library._FUNCTIONS if n != "coda_version"]
    source = 'const char *coda_version(void) { return "0.0.9"; }' + "".join(f"void {n}(void) {{}}" for n in names)
    subprocess.run(["gcc", "-x", "c", "-shared", "-fPIC", "-o", tmp_path / "other.so", "-"], input=source.encode(), check=True)
    done = run("import coda", CODA_LIBRARY=str(tmp_path / "other.so"))
    assert "ImportError" in done.stderr and f"version 0.0.9, this package needs {coda.__version__}" in done.stderr, done.stderr


HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "include", "coda.h")


@pytest.mark.skipif(not os.path.exists(HEADER), reason="needs the source tree")
def test_structures_and_functions_are_those_of_the_header():
    """A field or an argument too few would read memory that is not there."""
    import re
    from coda import _library as L
    text = re.sub(r"/\*.*?\*/", "", open(HEADER).read(), flags=re.S)
    assert re.search(r'CODA_VERSION "(.*)"', text).group(1) == coda.__version__
    structures = {"coda_error": L.ErrorStruct, "coda_operand": L.OperandStruct, "coda_axis": L.AxisStruct,
                  "coda_dims": L.DimsStruct, "coda_tensor": L.TensorStruct, "coda_cost": L.CostStruct,
                  "coda_rewrite_options": L.RewriteOptionsStruct, "coda_options": L.OptionsStruct}
    for name, structure in structures.items():
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.S).group(1)
        body = re.sub(r"struct \{.*?\} ", "int ", body, flags=re.S)
        fields = [re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part.strip())[0] for line in body.split(";") if line.strip()
                  for part in line.split(",")]
        assert fields == [field for field, _ in structure._fields_], name
    for name, (_, arguments) in L._FUNCTIONS.items():
        declared = re.search(rf"\b{name}\((.*?)\);", text, re.S).group(1)
        count = 0 if declared.strip() == "void" else declared.count(",") + 1
        assert len(arguments) == count, name
    enumerated = re.search(r"typedef enum coda_dtype \{(.*?)\} coda_dtype;", text, re.S).group(1)
    assert [e.split("=")[0].strip().removeprefix("CODA_").lower() for e in enumerated.split(",") if e.strip()] == \
        list(L.DTYPES)
