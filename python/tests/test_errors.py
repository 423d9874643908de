"""Bad input raises what torch users expect, with a message in their terms."""

import pytest
import torch

import coda
import coda.torch as C

x, gate, up = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6, 8)
weight, target = torch.randn(10, 8), torch.tensor([0, 3, -100, 9])
table = C.rope_table(16, 4)
CASES = [
    (lambda: C.linear_swiglu(x.double(), gate.double(), up.double()), TypeError, "float64.*bfloat16, float16 and float32"),
    (lambda: C.linear_swiglu(x.long(), gate, up), TypeError, "int64"),
    (lambda: C.linear_swiglu(x, gate.bfloat16(), up), TypeError, "`gate` is torch.bfloat16.*autocast"),
    (lambda: C.linear_swiglu(x, gate.numpy(), up), TypeError, "`gate` must be a Tensor, not ndarray"),
    (lambda: C.linear_swiglu(x.numpy(), gate, up), TypeError, "`x` must be a Tensor"),
    (lambda: C.linear_swiglu(x, gate.to("meta"), up), RuntimeError, "same device.*`gate` is on meta"),
    (lambda: C.linear_swiglu(x, gate[:, :7], up), ValueError, r"`gate` has shape \[6, 7\]; expected 2 dimensions \[6, 8\]"),
    (lambda: C.linear_swiglu(x, gate, up[:5]), ValueError, r"`up` has shape \[5, 8\]; expected .*\[6, 8\]"),
    (lambda: C.linear_swiglu(x, gate[None], up), ValueError, r"`gate` has shape \[1, 6, 8\]; expected 2 dimensions"),
    (lambda: C.linear_swiglu(x[0, 0], gate, up), ValueError, "scalar"),
    (lambda: C.linear_swiglu(x, gate, up, norm_weight=torch.ones(7)), ValueError, r"`norm_weight` has shape \[7\]"),
    (lambda: C.linear_swiglu(x, gate, up, norm_weight=torch.ones(8), norm_offset=2), ValueError, "norm_offset is 2"),
    (lambda: C.linear_swiglu(x, gate.half(), up.half(), norm_weight=torch.ones(8).half()), TypeError, "float32 norm_weight"),
    (lambda: C.linear_swiglu(x, gate.half(), up, norm_weight=torch.ones(8)), TypeError, "float16.*`up` is torch.float32"),
    (lambda: C.linear_residual(C.linear_residual_rmsnorm(x, weight[:8], x, torch.ones(8))[1], weight[:8], x), TypeError,
     r"`x` is a Normed.*x\.tensor\(\)"),
    (lambda: C.linear(x.to_sparse(), weight), TypeError, "`x` has layout torch.sparse_coo"),
    (lambda: C.linear(x, weight.to_mkldnn()), TypeError, "`weight` has layout torch._mkldnn"),
    (lambda: C.rmsnorm_linear(x, None, weight), TypeError, "norm_weight"),
    (lambda: C.linear(x, weight, torch.ones(9)), ValueError, r"`bias` has shape \[9\]"),
    (lambda: C.linear_residual(x, weight, torch.ones(5, 10)), ValueError, "`residual` has shape"),
    (lambda: C.linear_residual(x, weight, torch.ones(4, 9)), ValueError, "`residual` has shape"),
    (lambda: C.linear_rope(x, gate, up, up, table.double()), TypeError, "`table` must be a float32 tensor"),
    (lambda: C.linear_rope(x, torch.ones(6, 8), up, up, table), ValueError, "`query` has 6 rows.*head_dim 4"),
    (lambda: C.linear_rope(torch.randn(17, 8), weight[:8], weight[:4], weight[:4], table), ValueError, "17 positions"),
    (lambda: C.linear_rope(x, weight[:8], weight[:4], weight[:4], table, torch.arange(3)), ValueError, "`positions` has"),
    (lambda: C.linear_rope(x, weight[:8], weight[:4], weight[:4], table, torch.full((4,), 99)), ValueError, "99|outside"),
    (lambda: C.linear_rope(x, weight[:8], weight[:4], weight[:4], table, torch.ones(4)), TypeError, "`positions` is"),
    (lambda: C.attention_output_mlp(x, x, torch.ones(8, 8), torch.ones(8), gate, up, gate.T, activation="relu"),
     ValueError, "'relu'"),
    (lambda: C.attention_output_mlp(x, x, torch.ones(8, 8), torch.ones(8), gate, up, gate.T, down_norm=torch.ones(8)),
     TypeError, "`output_norm` and `down_norm`"),
    (lambda: C.linear_qknorm_rope(x, gate, up, up, torch.ones(4), torch.ones(4), table, norm_offset=1), ValueError, "norm_weight"),
    (lambda: C.linear_cross_entropy(x, weight, target.float()), TypeError, "`target` must be an int64"),
    (lambda: C.linear_cross_entropy(x, weight, target[:3]), ValueError, r"Expected target of shape \[4\]"),
    (lambda: C.linear_cross_entropy(x, weight, torch.tensor([0, 3, 10, 9])), IndexError, "Target 10 is out of bounds"),
    (lambda: C.linear_cross_entropy(x, weight, torch.tensor([0, 3, -1, 9])), IndexError, "Target -1 is out of bounds"),
    (lambda: C.linear_cross_entropy(x, weight[:, :7], target), ValueError, r"`weight` has shape \[10, 7\]"),
    (lambda: C.linear_cross_entropy(x, weight, target, reduction="avg"), ValueError, "avg is not a valid value"),
    (lambda: C.linear_cross_entropy(x, weight, target, label_smoothing=2), ValueError, "label_smoothing"),
    (lambda: C.linear_cross_entropy(x, weight, target, softcap=-1), ValueError, "softcap"),
    (lambda: C.linear_cross_entropy(x, weight, target, chunk_rows=0), ValueError, "chunk_rows"),
    (lambda: C.linear_cross_entropy(x, weight, target, reduction="none", recompute=False), ValueError, "recompute"),
    (lambda: C.linear_cross_entropy(x, weight, target, main_grad=torch.zeros(10, 7)), ValueError, "main_grad"),
    (lambda: C.linear_cross_entropy(x, weight, target, main_grad=[0]), ValueError, "main_grad"),
    (lambda: C.program(None), TypeError, "not NoneType"),
    (lambda: C.program("program p { in A : bf16[M, K] }"), coda.InvalidError, "has no out"),
    (lambda: C.program("program p { in A : f32[M, K]\n out Y : f32[M, K] += A }"), coda.UnsupportedError, "in place"),
    (lambda: C.program("program a { in A : f32[M, K]\n out Y : f32[M, K] = A }\n"
                       "program b { in A : f32[M, K]\n out Y : f32[M, K] = A }"), ValueError, "one program"),
    (lambda: C.TransformerBlock(32, 4, 64, 3), ValueError, "no multiple"),
    (lambda: C.TransformerBlock(33, 4, 64), ValueError, "dim 33 is no multiple of 4 heads"),
    (lambda: C.TransformerBlock(32, 4, 64, activation="relu"), ValueError, "'relu'"),
    (lambda: C.TransformerBlock(8, 1, 16)(x[None], table), ValueError, "heads of 4, these have 8"),
    (lambda: C.rope_table(8, 15), ValueError, "head_dim is 15"),
    (lambda: C.apply(torch.nn.Linear(2, 2)), ValueError, "Linear has no decoder layer that coda knows"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bad_input_is_refused(case):
    call, kind, message = CASES[case]
    with pytest.raises(kind, match=f"(?s){message}"):
        call()


def test_arguments_of_a_program_are_checked():
    f = C.program("program add { in A, B : bf16[M, N]\n out Y : bf16[M, N] = A + B }")
    a = torch.ones(2, 3)
    assert torch.equal(f(a, B=a), a + a) and repr(f) == "<coda.torch.program add(A, B) -> Y>"
    for call, kind, message in [
            (lambda: f(a), TypeError, "takes 2 tensors"), (lambda: f(a, a, a), TypeError, "3 were given"),
            (lambda: f(a, C=a), TypeError, "unexpected keyword argument 'C'"),
            (lambda: f(a, a.half()), TypeError, "`B` is torch.float16"), (lambda: f(a, [1]), TypeError, "not list"),
            (lambda: f(a, a[:1]), ValueError, r"`B` has shape \[1, 3\]"), (lambda: f(a.int(), a), TypeError, "int32")]:
        with pytest.raises(kind, match=message):
            call()
