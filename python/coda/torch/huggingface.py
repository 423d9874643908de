"""One line for Hugging Face models: `coda.torch.apply(model)`."""

import dataclasses
import functools
import inspect
import sys

import torch
from torch import nn

from . import functional as C
from ._operator import COMPUTE_DTYPES


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What distinguishes the decoder layers of one family."""

    family: str           # the beginning of its classes' names
    activation: str = "silu"
    offset: int = 0       # 1: weights of norms are stored minus 1
    window: str = ""      # where the attention takes a sliding window from: its "config", or the "module" itself
    softcap: bool = False # the attention caps its logits
    sandwich: bool = False  # norms behind attention and MLP too


_KINDS = (_Kind("Llama"), _Kind("Mistral", window="config"), _Kind("Qwen2", window="module"), _Kind("Qwen3", window="module"),
          _Kind("Gemma", "gelu_tanh", 1), _Kind("Gemma2", "gelu_tanh", 1, "module", softcap=True, sandwich=True),
          _Kind("Gemma3", "gelu_tanh", 1, "module", sandwich=True))
_FAMILIES = ", ".join(kind.family for kind in _KINDS)
_SOURCES = {kind.family: f"transformers.models.{kind.family.lower()}.modeling_{kind.family.lower()}" for kind in _KINDS}
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


def apply(model: nn.Module, *, recompute: bool = False, loss: bool = True) -> Report:
    """Makes the decoder layers and the loss of a Hugging Face Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma2 or Gemma3 (text) run on
    coda's operators.

    The model stays what it was: the same modules, parameters, names and state_dict; hooks on decoder layers run; generation
    works; attention stays what the model chose. Apply it before or after DDP, `fully_shard`, `torch.compile` or loading.

    A layer runs its own code whenever something in it is not what was taken: a projection replaced by LoRA or a quantised one,
    another forward, hooks inside, a DTensor weight, a type that coda does not compute in. In training with labels the loss is
    computed without logits, so `outputs.logits` is None; in evaluation, and without labels, they are there.

    recompute   as for `attention_output_mlp`: less memory, a little slower
    loss        False: the model computes its loss itself, for trainers that look at the logits

    Returns a Report. Raises ValueError for a model without a layer that it knows.
    """
    report, places, known, met = Report([], []), _places(model), _known_classes(), 0
    scaled = any(getattr(m, "attention_scaling", 1.0) != 1.0 for m in model.modules())  # yarn, longrope
    for name, module in model.named_modules():
        own = _original_class(module).__name__
        cls, kind, part = next((k for k in known if isinstance(module, k[0])), (None, None, None))
        if part == "DecoderLayer":
            met += 1
            why = _changed(module, cls) or _unfit(module, kind)
            if why:
                report.left.append((name, why))
                continue
            _patch(module, _layer_forward)
            report.taken.append(name)
            module._coda_kind, module._coda_parts = kind, {path: type(_module(module, path)) for path in _parts(module)}
            module._coda_place, module._coda_recompute, module._coda_scaled = places.get(module), bool(recompute), scaled
        elif part == "ForCausalLM":
            why = None if loss else "not asked for (loss=False)"
            why = why or _changed(module, cls) or _unfit_head(module)
            if why:
                report.left.append((f"{name or own}: the loss", why))
                continue
            _patch(module, _causal_forward)
            report.taken.append(f"{name or own}: the loss")
        elif part == "RMSNorm":
            if not kind.offset and name.rpartition(".")[2] == "norm" and not _changed(module, cls):
                _patch(module, _norm_forward)
                report.taken.append(name)
        elif own.endswith("DecoderLayer") or (module in places and own.endswith(("Layer", "Block"))):
            report.left.append((name, f"{own} is not among the layers that coda knows (those of {_FAMILIES})"))
    if not met and not report.taken:
        layers = sorted({_original_class(m).__name__ for m in places})
        raise ValueError(f"coda.torch.apply: {type(model).__name__} has no decoder layer that coda knows (those of {_FAMILIES} in "
                         f"transformers){'; its layers are ' + ', '.join(layers) if layers else ''}. Build layers from "
                         "coda.torch.TransformerBlock or its functions instead")
    return report


def restore(model: nn.Module) -> None:
    """Undoes `apply`."""
    for module in model.modules():
        if "_coda_forward" in module.__dict__:
            for name in ("forward", *(n for n in module.__dict__ if n.startswith("_coda_"))):
                del module.__dict__[name]


def _source(kind):
    """The module of transformers that defines a family, None where it is not loaded."""
    return sys.modules.get(_SOURCES[kind.family])


def _known_classes():
    """The classes of transformers that are taken, as far as they are loaded: class, kind, and the end of its name."""
    return [(getattr(_source(kind), kind.family + part), kind, part) for kind in _KINDS
            for part in ("DecoderLayer", "ForCausalLM", "RMSNorm") if hasattr(_source(kind), kind.family + part)]


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
    """The module's forward becomes a function of ours on this instance; what it was stays reachable. (A partial, which can be
    pickled where a method of an instance cannot.)"""
    if "_coda_forward" in module.__dict__:
        return
    module._coda_forward = module.forward
    module._coda_names = list(inspect.signature(module.forward).parameters)
    # What transformers calls the cache of keys and values: `cache` since 5.24, `past_key_values` before.
    module._coda_cache = "cache" if "cache" in module._coda_names else "past_key_values"
    # Where it checkpoints activations: in a __call__ of its own, or in the forward.
    module._coda_checkpoints = hasattr(module, "gradient_checkpointing") and type(module).__call__ is nn.Module.__call__
    module.forward = functools.partial(forward, module)


# ---------------------------------------------------------------- what fits

_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                "mlp.down_proj")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_SANDWICH_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_NORMS = ("input_layernorm", "post_attention_layernorm", *_SANDWICH_NORMS)
_PARTS = ("self_attn", "mlp", *_NORMS, *_HEAD_NORMS, *_PROJECTIONS, "mlp.act_fn")


def _module(layer, path):
    """The module at a path, None where there is none."""
    for name in path.split("."):
        layer = layer._modules.get(name) if layer is not None else None
    return layer


def _parts(layer):
    """Paths of the modules whose work the operators do."""
    return [path for path in _PARTS if _module(layer, path) is not None]


def _changed(module, cls):
    """How a module differs from what a class of transformers or torch does, or None."""
    if "forward" in module.__dict__ and "_coda_forward" not in module.__dict__:
        return "its forward was replaced"
    if not isinstance(module, cls) or (cls is nn.Linear and type(module) is not cls):
        found = type(module)
        return f"it is {found.__module__ + '.' if found.__name__ == cls.__name__ else ''}{found.__name__}, not {cls.__name__}"
    if inspect.unwrap(type(module).forward) is not inspect.unwrap(cls.forward):
        return f"{type(module).__name__} has another forward than {cls.__name__}"
    return None


def _unfit(layer, kind):
    """Why a layer cannot be taken, or None."""
    from transformers.activations import ACT2FN
    config = layer.self_attn.config
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if _ACTIVATIONS.get(activation) != kind.activation:
        return f"activation {activation!r}"
    own = lambda part: getattr(_source(kind), kind.family + part)  # noqa: E731
    expected = {"self_attn": own("Attention"), "mlp": own("MLP"), **dict.fromkeys(_NORMS + _HEAD_NORMS, own("RMSNorm")),
                **dict.fromkeys(_PROJECTIONS, nn.Linear), "mlp.act_fn": type(ACT2FN[activation])}
    for path, cls in expected.items():
        module = _module(layer, path)
        if module is None and path not in _HEAD_NORMS and (kind.sandwich or path not in _SANDWICH_NORMS):
            return f"{path} is missing"
        why = module is not None and _changed(module, cls)
        if why:
            return f"{path}: {why}"
    return _unfit_sizes(layer)


def _unfit_sizes(layer):
    """Which biases or sizes no operator has, or None."""
    attention, parts = layer.self_attn, [_module(layer, path) for path in _PROJECTIONS]
    for path, projection in zip(_PROJECTIONS[3:], parts[3:]):
        if projection.bias is not None:
            return f"{path} has a bias"
    if len({projection.bias is None for projection in parts[:3]}) > 1:
        return "some of q_proj, k_proj and v_proj have a bias and some have not"
    head = attention.head_dim
    if head & (head - 1) or not 4 <= head <= 256:
        return f"head_dim {head} is no power of two from 4 to 256"
    if _module(layer, "self_attn.q_norm") is not None and attention.q_norm.weight.shape != (head,):
        return "q_norm is not a norm of one head"
    if len({_eps(_module(layer, path)) for path in _NORMS[1:] if _module(layer, path) is not None}) > 1:
        return "its norms have different eps"
    return None


def _unfit_head(model):
    if type(model.lm_head) is not nn.Linear or model.lm_head.bias is not None or "forward" in model.lm_head.__dict__:
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
    dtype = None
    for path, cls in layer._coda_parts.items():
        part = _module(layer, path)
        if type(part) is not cls or "forward" in part.__dict__:
            return False
        if path != "self_attn":
            if _hooked(part):
                return False
        elif part._backward_hooks or part._backward_pre_hooks or any(
                not _capturing(hook) or part.config._attn_implementation == "eager"
                for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())):
            return False
        weight = part._parameters.get("weight")
        if weight is None:
            if path in _PROJECTIONS or path in _NORMS:  # something else computes it
                return False
            continue
        dtype = weight.dtype if dtype is None else dtype
        if weight.dtype is not dtype or not _plain(weight):
            return False
    return dtype in COMPUTE_DTYPES


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


def _project(layer, x, position_embeddings):
    """Norm, query, key, value, their norms and rotation: q, k, v as [batch, heads, length, head_dim]."""
    a, norm = layer.self_attn, layer.input_layernorm
    batch, length = x.shape[:2]
    if _rotates_apart(layer):
        h = norm(x)
        q, k, v = (C.linear(h, p.weight, p.bias).view(batch, length, -1, a.head_dim).transpose(1, 2)
                   for p in (a.q_proj, a.k_proj, a.v_proj))
        return [*_source(layer._coda_kind).apply_rotary_pos_emb(q, k, *position_embeddings), v]
    table, positions = rotary(position_embeddings, batch, length)
    shared = {"bias": _bias(a), "norm_weight": norm.weight, "norm_offset": layer._coda_kind.offset, "eps": _eps(norm)}
    weights = (a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)
    if getattr(a, "q_norm", None) is not None:
        q, k, v = C.linear_qknorm_rope(x, *weights, a.q_norm.weight, a.k_norm.weight, table, positions,
                                       head_eps=_eps(a.q_norm), **shared)
    else:
        q, k, v = C.linear_rope(x, *weights, table, positions, **shared)
    return [t.view(batch, length, -1, a.head_dim).transpose(1, 2) for t in (q, k, v)]


def _rotates_apart(layer):
    """Where angles are scaled (yarn) the rotation is none that could be undone, which the gradient of a norm before biases does."""
    a = layer.self_attn
    return layer._coda_scaled and a.q_proj.bias is not None and getattr(a, "q_norm", None) is None


def _bias(attention):
    if attention.q_proj.bias is None:
        return None
    return torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])


def _eps(norm):
    return getattr(norm, "variance_epsilon", None) or norm.eps


def _decoder_layer(self, hidden_states, attention_mask=None, position_ids=None, cache=None, use_cache=False,
                   position_embeddings=None, past_key_values=None, **kwargs):
    cache = past_key_values if cache is None else cache
    if not _ready(self):
        return self._coda_forward(hidden_states, attention_mask=attention_mask, position_ids=position_ids,
                                  use_cache=use_cache, position_embeddings=position_embeddings,
                                  **{self._coda_cache: cache}, **kwargs)
    a, m, kind = self.self_attn, self.mlp, self._coda_kind
    q, k, v = _made_before(self, hidden_states, position_embeddings) or _project(self, hidden_states, position_embeddings)
    if cache is not None:
        # since 5.24 a paged cache writes into the arguments of the attention
        k, v = cache.update(k, v, a.layer_idx, **({"kwargs": kwargs} if self._coda_cache == "cache" else {}))
    if kind.window:
        kwargs["sliding_window"] = getattr(a.config if kind.window == "config" else a, "sliding_window", None)
    if kind.softcap:
        kwargs["softcap"] = a.attn_logit_softcapping
    y, _ = _attention(self)(a, q, k, v, attention_mask, dropout=a.attention_dropout if self.training else 0.0,
                            scaling=a.scaling, position_ids=position_ids, use_cache=use_cache, **kwargs)
    y = y.reshape(*hidden_states.shape[:-1], -1)
    norm = self.pre_feedforward_layernorm if kind.sandwich else self.post_attention_layernorm
    weights = (a.o_proj.weight, norm.weight, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight)
    shared = {"activation": kind.activation, "norm_offset": kind.offset, "eps": _eps(norm), "recompute": self._coda_recompute}
    if kind.sandwich:
        return C.attention_output_mlp(y, hidden_states, *weights, **shared, output_norm=self.post_attention_layernorm.weight,
                                      down_norm=self.post_feedforward_layernorm.weight)
    after = None if C.autocasts(y) else _layer_after(self)
    if after is None:
        return C.attention_output_mlp(y, hidden_states, *weights, **shared)
    return _with_projections(after, y, hidden_states, weights, shared, position_embeddings)


def _layer_forward(self, hidden_states, *arguments, **named):
    """transformers checkpoints a layer in its `__call__`, or since 5.24 in the forward that ours stands for."""
    named.update(zip(self._coda_names[1:], arguments))
    if not self._coda_checkpoints or not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
        return _decoder_layer(self, hidden_states, **named)
    named.update({name: None if name != "use_cache" else False for name in (self._coda_cache, "use_cache") if name in named})
    return self._gradient_checkpointing_func(functools.partial(_decoder_layer, self, **named), hidden_states)


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
            not _is_ours(after) or not _is_ours(layer) or after._coda_kind != layer._coda_kind:
        return None
    a, norm = after.self_attn, layer.input_layernorm.weight
    if (getattr(after, "gradient_checkpointing", False) and after.training) or not _ready(after) or _rotates_apart(after) or \
            after.input_layernorm.weight.dtype is not norm.dtype or \
            any(p.weight.device != norm.device or p.weight.shape != (p.out_features, p.in_features)
                or not p.weight.untyped_storage().nbytes() for p in (a.q_proj, a.k_proj, a.v_proj)):
        return None
    return after


def _is_ours(layer):
    """Is the layer's forward the one that `apply` gave it, and nothing around it?"""
    return getattr(layer.__dict__.get("forward"), "func", None) is _layer_forward


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


def _attention(layer):
    """The attention function that the model chose."""
    module = sys.modules[_SOURCES[layer._coda_kind.family]]
    functions = module.ALL_ATTENTION_FUNCTIONS
    return functions.get_interface(layer.self_attn.config._attn_implementation, module.eager_attention_forward)


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
            head.weight.dtype not in COMPUTE_DTYPES or kwargs.get("return_dict") is False or \
            logits_to_keep is None or torch.is_tensor(logits_to_keep) or logits_to_keep or _unfit_head(self):
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
                                  softcap=getattr(self.config, "final_logit_softcapping", None),
                                  reduction="mean" if items is None else "sum")
    if items is not None:
        loss = loss / (items.to(loss.device) if torch.is_tensor(items) else items)
    from transformers.modeling_outputs import CausalLMOutputWithPast
    kept = {self._coda_cache: cache if inputs[self._coda_cache] is not cache else getattr(outputs, self._coda_cache)}
    return CausalLMOutputWithPast(loss=loss, logits=None, hidden_states=outputs.hidden_states, attentions=outputs.attentions, **kept)
