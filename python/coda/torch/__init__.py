"""coda's kernels for PyTorch: fused operators, modules, and one line for Hugging Face models.

    import coda.torch

    y = coda.torch.linear_swiglu(x, gate, up, norm_weight=g)     # operators, on CPU and CUDA tensors
    coda.torch.apply(model)                                      # a Hugging Face Llama, Mistral, Qwen or Gemma
    optimizer = coda.torch.AdamW(model.parameters())             # torch's AdamW, one kernel a parameter
    f = coda.torch.program(text)                                 # your own kernel, with its derived backward
"""

from ._launch import cpu_device
from ._program import ProgramFunction, program
from .functional import (Normed, attention_output_mlp, attention_output_mlp_rope, linear, linear_cross_entropy, linear_geglu,
                         linear_qknorm_rope, linear_residual, linear_residual_rmsnorm, linear_rope, linear_swiglu,
                         rmsnorm_linear, rope_table)
from .huggingface import Report, apply, restore
from .modules import LinearCrossEntropyLoss, TransformerBlock
from .optim import AdamW

__all__ = [
    "AdamW", "LinearCrossEntropyLoss", "Normed", "ProgramFunction", "Report", "TransformerBlock", "apply",
    "attention_output_mlp", "attention_output_mlp_rope", "cpu_device", "linear", "linear_cross_entropy", "linear_geglu",
    "linear_qknorm_rope", "linear_residual", "linear_residual_rmsnorm", "linear_rope", "linear_swiglu", "program", "restore",
    "rmsnorm_linear", "rope_table",
]
