"""One line for Hugging Face models: `coda.torch.apply(model)`."""

import dataclasses
import functools
import inspect
import sys
import types

import torch
from torch import nn

from . import functional as C
from ._operator import COMPUTE_DTYPES

# Decoder layers by class name: the activation's names in ACT2FN, whether norm weights are stored minus 1, and whether the
# attention passes its sliding window on.
_GELU = ("gelu_pytorch_tanh",)
_LAYERS = {
    "LlamaDecoderLayer": ("silu", False, None),
    "MistralDecoderLayer": ("silu", False, "config"),
    "Qwen2DecoderLayer": ("silu", False, "module"),
    "Qwen3DecoderLayer": ("silu", False, "module"),
    "GemmaDecoderLayer": ("gelu_tanh", True, None),
}
_HEADS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM")
# Norms that torch has as one kernel, in f32 with one rounding; for the last norm, behind which no product of ours stands.
_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclasses.dataclass
class Report:
    """What `apply` took and what it left, each with its reason. print() it."""

    taken: list
    left: list

    def __str__(self):
        lines = [f"coda: {len(self.taken)} modules taken, {len(self.left)} left"]
        lines += [f"  taken  {name}" for name in self.taken]
        lines += [f"  left   {name}: {why}" for name, why in self.left]
        return "\n".join(lines)


def apply(model: nn.Module, *, recompute: bool = False) -> Report:
    """Makes the decoder layers and the loss of a Hugging Face Llama, Mistral, Qwen2, Qwen3 or Gemma run on coda's operators.

    The model stays what it was: the same modules, parameters, names and state_dict; hooks on decoder layers run; generation
    works; attention stays what the model chose. Apply it before or after DDP, `fully_shard`, `torch.compile` or loading.

    A layer runs its own code whenever something in it is not what was taken: a projection replaced by LoRA or a quantised one,
    hooks on a projection, a DTensor weight, a type that coda does not compute in. In training with labels the loss is computed
    without logits, so `outputs.logits` is None; in evaluation, and without labels, they are there.

    recompute   as for `attention_output_mlp`: less memory, a little slower

    Returns a Report. Raises ValueError for a model without a layer that it knows.
    """
    report, places = Report([], []), _places(model)
    for name, module in model.named_modules():
        kind = _original_class(module).__name__
        if kind in _LAYERS:
            why = _unfit(module, kind)
            if why:
                report.left.append((name, why))
                continue
            _patch(module, _layer_forward(kind))
            report.taken.append(name)
            module._coda_place, module._coda_recompute = places.get(module), bool(recompute)
        elif kind in _HEADS:
            why = _unfit_head(module)
            if why:
                report.left.append((name or "loss", why))
                continue
            _patch(module, _causal_forward)
            report.taken.append(f"{name or kind}: the loss")
        elif kind in _NORMS and name.rpartition(".")[2] == "norm":
            _patch(module, _norm_forward)
            report.taken.append(name)
        elif kind.endswith("DecoderLayer"):
            report.left.append((name, f"{kind} is not among the layers that coda knows ({', '.join(_LAYERS)})"))
    if not report.taken and not report.left:
        raise ValueError(f"coda.torch.apply: {type(model).__name__} has no decoder layer that coda knows "
                         f"({', '.join(_LAYERS)}); build layers from coda.torch.TransformerBlock or its functions instead")
    return report


def restore(model: nn.Module) -> None:
    """Undoes `apply`."""
    for module in model.modules():
        if "_coda_forward" in module.__dict__:
            for name in ("forward", *(n for n in module.__dict__ if n.startswith("_coda_"))):
                del module.__dict__[name]


def _original_class(module):
    """FSDP2 puts a class of its own in front."""
    for kind in type(module).__mro__:
        if not kind.__name__.startswith("FSDP"):
            return kind
    return type(module)


def _places(model):
    """Of every module in a ModuleList: the list and the module's place there."""
    return {m: (stack, i) for stack in model.modules() if isinstance(stack, nn.ModuleList) for i, m in enumerate(stack)}


def _patch(module, forward):
    """The module's forward becomes a method of this instance; what it was stays reachable."""
    if "_coda_forward" in module.__dict__:
        return
    module._coda_forward = module.forward
    # What transformers calls the cache of keys and values: `cache` since 5.24, `past_key_values` before.
    module._coda_cache = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    # Where it checkpoints activations: in a __call__ of its own, or in the forward.
    module._coda_checkpoints = hasattr(module, "gradient_checkpointing") and type(module).__call__ is nn.Module.__call__
    module.forward = types.MethodType(forward, module)


# ---------------------------------------------------------------- what fits

def _projections(layer):
    a, m = layer.self_attn, layer.mlp
    return a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj


def _unfit(layer, kind):
    """Why a layer cannot be taken, or None."""
    attention, mlp = layer.self_attn, layer.mlp
    for what in ("q_proj", "k_proj", "v_proj", "o_proj"):
        if type(getattr(attention, what, None)) is not nn.Linear:
            return f"self_attn.{what} is {type(getattr(attention, what, None)).__name__}, not nn.Linear"
    for what in ("gate_proj", "up_proj", "down_proj"):
        if type(getattr(mlp, what, None)) is not nn.Linear:
            return f"mlp.{what} is {type(getattr(mlp, what, None)).__name__}, not nn.Linear"
    if attention.o_proj.bias is not None or any(p.bias is not None for p in _projections(layer)[4:]):
        return "o_proj or the MLP has a bias"
    biases = [p.bias is not None for p in _projections(layer)[:3]]
    if any(biases) != all(biases):
        return "some of q_proj, k_proj and v_proj have a bias and some have not"
    head = attention.head_dim
    if head & (head - 1) or not 4 <= head <= 256:
        return f"head_dim {head} is no power of two from 4 to 256"
    activation = getattr(attention.config, "hidden_act", None) or getattr(attention.config, "hidden_activation", None)
    if _ACTIVATIONS.get(activation) != _LAYERS[kind][0]:
        return f"activation {activation!r}"
    if getattr(attention, "q_norm", None) is not None and attention.q_norm.weight.shape != (head,):
        return "q_norm is not a norm of one head"
    return None


def _unfit_head(model):
    if type(model.lm_head) is not nn.Linear or model.lm_head.bias is not None:
        return "lm_head is not an nn.Linear without bias"
    if getattr(model.loss_function, "__name__", "") != "ForCausalLMLoss":
        return f"the loss is {getattr(model.loss_function, '__name__', model.loss_function)}, not ForCausalLMLoss"
    return None


def _capturing(hook):
    return getattr(hook, "__module__", "") == "transformers.utils.output_capturing"


def _hooked(module):
    return module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks


def _ready(layer):
    """Is the layer, now, what was taken? Checked on every call: adapters, hooks and sharding come later than `apply`."""
    attention = layer.self_attn
    for hook in (*attention._forward_hooks.values(), *attention._forward_pre_hooks.values()):
        if not _capturing(hook) or attention.config._attn_implementation == "eager":
            return False
    if _hooked(layer.mlp) or attention._backward_hooks or _hooked(layer.input_layernorm) or \
            _hooked(layer.post_attention_layernorm):
        return False
    dtype = layer.input_layernorm.weight.dtype
    if dtype not in COMPUTE_DTYPES or layer.post_attention_layernorm.weight.dtype is not dtype:
        return False
    for p in _projections(layer):
        if type(p) is not nn.Linear or _hooked(p) or p.weight.dtype is not dtype or not _plain(p.weight):
            return False
    return True


def _plain(weight):
    """No DTensor, no quantised subclass."""
    return type(weight) is nn.Parameter or type(weight) is torch.Tensor or not hasattr(weight, "__torch_dispatch__") or \
        type(weight).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


# ---------------------------------------------------------------- the layer

def rotary(position_embeddings, batch, length):
    """Cosines and sines as transformers hands them on, as a table with one row a position, and each row's place in it.

    All layers of one forward get the same tensors, so the first leaves its result on them."""
    cos, sin = position_embeddings
    kept = None if torch.compiler.is_compiling() else getattr(cos, "_coda_rotary", None)
    if kept is not None and kept[1].shape == (batch, length):
        return kept
    half = cos.shape[-1] // 2
    table = torch.cat([cos[..., :half], sin[..., :half]], -1).float().reshape(-1, 2 * half)
    if cos.shape[0] == 1 and batch != 1:
        positions = torch.arange(length, device=cos.device, dtype=torch.int32).repeat(batch).view(batch, length)
    else:
        positions = torch.arange(batch * length, device=cos.device, dtype=torch.int32).view(batch, length)
    if not torch.compiler.is_compiling():
        cos._coda_rotary = table, positions
    return table, positions


def _project(layer, x, position_embeddings, offset):
    """Norm, query, key, value, their norms and rotation: q, k, v as [batch, heads, length, head_dim]."""
    a, norm = layer.self_attn, layer.input_layernorm
    batch, length = x.shape[:2]
    table, positions = rotary(position_embeddings, batch, length)
    shared = {"bias": _bias(a), "norm_weight": norm.weight, "norm_offset": int(offset), "eps": _eps(norm)}
    weights = (a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)
    if getattr(a, "q_norm", None) is not None:
        q, k, v = C.linear_qknorm_rope(x, *weights, a.q_norm.weight, a.k_norm.weight, table, positions,
                                       head_eps=_eps(a.q_norm), **shared)
    else:
        q, k, v = C.linear_rope(x, *weights, table, positions, **shared)
    return [t.view(batch, length, -1, a.head_dim).transpose(1, 2) for t in (q, k, v)]


def _bias(attention):
    if attention.q_proj.bias is None:
        return None
    return torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])


def _eps(norm):
    return getattr(norm, "variance_epsilon", None) or norm.eps


@functools.cache
def _layer_forward(kind):
    activation, offset, window = _LAYERS[kind]

    def forward(self, hidden_states, attention_mask=None, position_ids=None, cache=None, use_cache=False,
                position_embeddings=None, past_key_values=None, **kwargs):
        cache = past_key_values if cache is None else cache
        if not _ready(self):
            return self._coda_forward(hidden_states, attention_mask=attention_mask, position_ids=position_ids,
                                      use_cache=use_cache, position_embeddings=position_embeddings,
                                      **{self._coda_cache: cache}, **kwargs)
        a, m = self.self_attn, self.mlp
        q, k, v = _made_before(self, hidden_states, position_embeddings) or \
            _project(self, hidden_states, position_embeddings, offset)
        if cache is not None:
            k, v = cache.update(k, v, a.layer_idx)
        if window is not None:
            kwargs["sliding_window"] = getattr(a.config if window == "config" else a, "sliding_window", None)
        y, _ = _attention(a)(a, q, k, v, attention_mask, dropout=a.attention_dropout if self.training else 0.0,
                             scaling=a.scaling, position_ids=position_ids, use_cache=use_cache, **kwargs)
        y = y.reshape(*hidden_states.shape[:-1], -1)
        norm = self.post_attention_layernorm
        if C.autocasts(y) and hidden_states.dtype is torch.float32:
            return _mixed(self, y, hidden_states, activation, offset)
        weights = (a.o_proj.weight, norm.weight, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight)
        shared = {"activation": activation, "norm_offset": int(offset), "eps": _eps(norm), "recompute": self._coda_recompute}
        after = _layer_after(self)
        if after is None:
            return C.attention_output_mlp(y, hidden_states, *weights, **shared)
        return _with_projections(after, y, hidden_states, weights, shared, position_embeddings)
    return _checkpointed(forward)


# ---------------------------------------------------------------- from one layer to the next

def _layer_after(layer):
    """The next layer, if its norm, query, key and value can be made here, in this layer's last product.

    Not where something between the two layers could see or change the stream (hooks), where the next layer's weights may not
    be there yet (sharding), where a layer is recomputed by itself (checkpointing), and not while tracing."""
    stack, place = layer._coda_place or ((), 0)
    if torch.compiler.is_compiling() or place + 1 >= len(stack) or layer._forward_hooks or layer._backward_hooks or \
            layer._backward_pre_hooks or _recomputed() or nn.modules.module._has_any_global_hook():
        return None
    after = stack[place + 1]
    if stack[place] is not layer or after._forward_pre_hooks or after._backward_hooks or after._backward_pre_hooks or \
            _own_forward(after) is None or _own_forward(after) is not _own_forward(layer):
        return None
    a, norm = after.self_attn, layer.input_layernorm.weight
    if (getattr(after, "gradient_checkpointing", False) and after.training) or not _ready(after) or \
            after.input_layernorm.weight.dtype is not norm.dtype or \
            any(p.weight.device != norm.device or p.weight.shape != (p.out_features, p.in_features)
                or not p.weight.untyped_storage().nbytes() for p in (a.q_proj, a.k_proj, a.v_proj)):
        return None
    return after


def _own_forward(layer):
    """The function that `apply` gave a layer; None where there is none, or something was put around it."""
    return getattr(layer.__dict__.get("forward"), "__func__", None)


def _recomputed():
    """Under hooks on saved tensors: activation checkpointing, offloading."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _with_projections(after, y, residual, weights, shared, position_embeddings):
    """The rest of a layer and the next one's query, key and value, which wait on its result."""
    a, norm = after.self_attn, after.input_layernorm
    batch, length = y.shape[:2]
    norms = {}
    if getattr(a, "q_norm", None) is not None:
        norms = {"query_norm": a.q_norm.weight, "key_norm": a.k_norm.weight, "head_eps": _eps(a.q_norm)}
    x, q, k, v = C.attention_output_mlp_rope(
        y, residual, *weights, norm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight,
        *rotary(position_embeddings, batch, length), bias=_bias(a), next_eps=_eps(norm), **norms, **shared)
    heads = [t.view(batch, length, -1, a.head_dim).transpose(1, 2) for t in (q, k, v)]
    x._coda_projected = after, position_embeddings[0], x._version, heads
    return x


def _made_before(layer, x, position_embeddings):
    """Query, key and value that the layer before this one made, if they are those of this input."""
    made = None if torch.compiler.is_compiling() else x.__dict__.pop("_coda_projected", None)
    if made is None:
        return None
    after, cos, version, heads = made
    if after is not layer or cos is not position_embeddings[0] or x._version != version or \
            heads[0].requires_grad != x.requires_grad or _recomputed():
        return None
    return heads


def _checkpointed(forward):
    """transformers checkpoints a layer in its `__call__`, or since 5.24 in the forward that ours stands for."""
    def checkpointed(self, *arguments, **named):
        if not self._coda_checkpoints or not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return forward(self, *arguments, **named)
        named.update({name: None if name != "use_cache" else False for name in (self._coda_cache, "use_cache")
                      if name in named})
        return self._gradient_checkpointing_func(functools.partial(forward, self, **named), *arguments)
    return checkpointed


def _mixed(layer, y, residual, activation, offset):
    """The rest of a layer under autocast, whose residual stream stays f32: the norm and the gate are fused, the sums are not."""
    m, norm = layer.mlp, layer.post_attention_layernorm
    x = residual + C.linear(y, layer.self_attn.o_proj.weight)
    gated = C.linear_swiglu if activation == "silu" else C.linear_geglu
    a = gated(x, m.gate_proj.weight, m.up_proj.weight, norm_weight=norm.weight, norm_offset=int(offset), eps=_eps(norm))
    return x + C.linear(a, m.down_proj.weight)


def _attention(attention):
    """The attention function that the model chose."""
    module = sys.modules[_original_class(attention).__module__]
    functions = module.ALL_ATTENTION_FUNCTIONS
    return functions.get_interface(attention.config._attn_implementation, module.eager_attention_forward)


def _norm_forward(self, hidden_states):
    if hidden_states.dtype is not self.weight.dtype or C.autocasts(hidden_states):
        return self._coda_forward(hidden_states)
    return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, _eps(self))


# ---------------------------------------------------------------- the loss

@functools.cache
def _class_that_keeps_nothing():
    from transformers.cache_utils import DynamicCache
    if "config" not in inspect.signature(DynamicCache.__init__).parameters:
        return None

    class KeepsNothing(DynamicCache):
        def update(self, keys, values, *arguments, **named):
            return keys, values
    return KeepsNothing


def _keeps_nothing(model, use_cache):
    """A cache of keys and values that keeps none, for a model that wants none. Without a cache transformers looks whether
    positions are those of packed sequences, also where nobody gave any: in every step the host would wait for the GPU."""
    if torch.compiler.is_compiling() or (model.config.use_cache if use_cache is None else use_cache) or \
            any(getattr(layer, "gradient_checkpointing", False) for layer in model.model.layers):
        return None
    made = _class_that_keeps_nothing()
    return made and made(config=model.config)


def _causal_forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, inputs_embeds=None,
                    labels=None, use_cache=None, logits_to_keep=0, past_key_values=None, **kwargs):
    """Training with labels: the loss without the logits. Everything else: the model's own code."""
    head = self.lm_head
    cache = past_key_values if cache is None else cache
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
              self._coda_cache: cache, "inputs_embeds": inputs_embeds, "use_cache": use_cache}
    if not self.training or labels is None or type(head) is not nn.Linear or _hooked(head) or not _plain(head.weight) or \
            head.weight.dtype not in COMPUTE_DTYPES or kwargs.get("return_dict") is False or _unfit_head(self):
        return self._coda_forward(**inputs, labels=labels, logits_to_keep=logits_to_keep, **kwargs)
    if cache is None and attention_mask is None and position_ids is None:
        inputs[self._coda_cache] = _keeps_nothing(self, use_cache)
    outputs = self.model(**inputs, **kwargs)
    hidden = outputs.last_hidden_state
    shifted = kwargs.get("shift_labels")
    if shifted is None:
        shifted = nn.functional.pad(labels, (0, 1), value=kwargs.get("ignore_index", -100))[..., 1:]
    items = kwargs.get("num_items_in_batch")
    loss = C.linear_cross_entropy(hidden, head.weight, shifted.to(hidden.device).contiguous(),
                                  ignore_index=kwargs.get("ignore_index", -100),
                                  reduction="mean" if items is None else "sum")
    if items is not None:
        loss = loss / (items.to(loss.device) if torch.is_tensor(items) else items)
    made = sys.modules[_original_class(self).__module__].CausalLMOutputWithPast
    kept = {self._coda_cache: cache if inputs[self._coda_cache] is not cache else getattr(outputs, self._coda_cache)}
    return made(loss=loss, logits=None, hidden_states=outputs.hidden_states, attentions=outputs.attentions, **kept)
