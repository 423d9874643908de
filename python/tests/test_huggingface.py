"""Patched Hugging Face models (tiny, random weights) against the unpatched ones."""

import copy
import functools
import pickle

import pytest
import torch

transformers = pytest.importorskip("transformers")

import coda.torch as C  # noqa: E402

SIZES = {"vocab_size": 301, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "attn_implementation": "sdpa"}
CONFIGS = {
    "llama": lambda **k: transformers.LlamaConfig(**SIZES, **k),
    "mistral": lambda **k: transformers.MistralConfig(**SIZES, sliding_window=8, **k),
    "qwen2": lambda **k: transformers.Qwen2Config(**SIZES, **k),
    "qwen3": lambda **k: transformers.Qwen3Config(**SIZES, head_dim=16, **k),
    "gemma": lambda **k: transformers.GemmaConfig(**SIZES, head_dim=16, **k),
    "gemma2": lambda **k: transformers.Gemma2Config(**{**SIZES, "attn_implementation": "eager"}, head_dim=16, sliding_window=8,
                                                    query_pre_attn_scalar=24, final_logit_softcapping=5.0,
                                                    attn_logit_softcapping=2.0, **k),
    "gemma3": lambda **k: transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=24,
                                                        layer_types=["sliding_attention", "full_attention"], **k),
}


def pair(kind, device="cpu", dtype=torch.float32, **options):
    """A model and a patched copy. Norm weights and biases are not left at 1 and 0, where mistakes would not show."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](**options)).to(device, dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    patched = copy.deepcopy(model)
    report = C.apply(patched)
    assert len(report.taken) == (3 if "gemma" in kind else 4) and not report.left, str(report)
    return model, patched


def tokens(device="cpu", batch=2, length=20):
    return torch.randint(1, 301, (batch, length), device=device)


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.fixture(params=list(CONFIGS))
def kind(request):
    return request.param


def test_logits_loss_and_every_gradient(kind, device):
    model, patched = pair(kind, device)
    ids = tokens(device)
    labels = ids.clone()
    labels[0, :5] = -100
    a, b = model.train()(input_ids=ids, labels=labels), patched.train()(input_ids=ids, labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert b.logits is None
    a.loss.backward(), b.loss.backward()
    for (name, p), q in zip(model.named_parameters(), patched.parameters()):
        assert relative(q.grad, p.grad) < 2e-5, name
    torch.testing.assert_close(patched.eval()(ids).logits, model.eval()(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_scaled_rotations(family, device):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    model, patched = pair(family, device, rope_parameters=yarn)
    assert model.model.rotary_emb.attention_scaling > 1.1
    ids = tokens(device)
    for m in (model, patched):
        m.train()(input_ids=ids, labels=ids).loss.backward()
    for (name, p), q in zip(model.named_parameters(), patched.parameters()):
        assert relative(q.grad, p.grad) < 2e-5, name


def test_errors_in_bf16_are_no_larger_than_the_unpatched_models(kind, device):
    model, patched = pair(kind, device, torch.bfloat16)
    double = copy.deepcopy(model).double().train()
    ids, grads = tokens(device), []
    for m in (double, model.train(), patched.train()):
        m(input_ids=ids, labels=ids).loss.backward()
        grads.append(torch.cat([p.grad.double().flatten() for p in m.parameters()]))
    assert relative(grads[2], grads[0]) < 1.2 * relative(grads[1], grads[0])


def test_under_autocast_the_residual_stream_stays_f32_and_errors_are_no_larger(kind, device):
    """Of four batches together: of one, the two errors differ by up to a fifth either way."""
    model, patched = pair(kind, device)
    double, grads, streams = copy.deepcopy(model).double().train(), ([], [], []), []
    patched.model.layers[1].register_forward_hook(lambda module, args, output: streams.append(output.dtype))
    for _ in range(4):
        ids = tokens(device)
        for m, gradients in zip((double, model.train(), patched.train()), grads):
            m.zero_grad()
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=m is not double):
                m(input_ids=ids, labels=ids).loss.backward()
            gradients += [p.grad.double().flatten() for p in m.parameters()]
    exact, plain, ours = map(torch.cat, grads)
    assert set(streams) == {torch.float32}
    assert relative(ours, exact) < 1.2 * relative(plain, exact)


def test_a_padded_batch(kind, device):
    model, patched = pair(kind, device)
    ids, mask = tokens(device), torch.ones(2, 20, dtype=torch.long, device=device)
    mask[0, :6] = 0
    a, b = model.eval()(ids, attention_mask=mask).logits, patched.eval()(ids, attention_mask=mask).logits
    torch.testing.assert_close(b[mask.bool()], a[mask.bool()], rtol=1e-4, atol=1e-4)


def test_generation_gives_the_same_tokens(kind, device):
    model, patched = pair(kind, device)
    ids = tokens(device, length=6)
    a, b = (m.eval().generate(ids, max_new_tokens=6, do_sample=False) for m in (model, patched))
    assert torch.equal(a, b)


def test_the_state_dict_round_trips(kind, tmp_path):
    model, patched = pair(kind)
    assert list(model.state_dict()) == list(patched.state_dict())
    patched.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=model.config._attn_implementation)
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values()):
        assert torch.equal(a, b), name
    torch.testing.assert_close(again.eval()(tokens()).logits.shape, (2, 20, 301))
    C.apply(again)
    again.load_state_dict(model.state_dict())


def test_restore_undoes_it(kind):
    model, patched = pair(kind)
    C.restore(patched)
    ids = tokens()
    assert torch.equal(patched.eval()(ids).logits, model.eval()(ids).logits)
    assert not [m for m in patched.modules() if "forward" in m.__dict__]


def test_a_copy_of_a_patched_model_uses_its_own_weights():
    _, patched = pair("llama")
    twin = copy.deepcopy(patched)
    with torch.no_grad():
        for p in patched.parameters():
            p.zero_()
    assert twin.eval()(tokens()).logits.abs().max() > 0


def counted(monkeypatch):
    """Counts of calls of the operators that a layer runs."""
    counts = {"linear_rope": 0, "linear_qknorm_rope": 0, "attention_output_mlp": 0, "attention_output_mlp_rope": 0}

    def count(name, function):
        def call(*arguments, **named):
            counts[name] += 1
            return function(*arguments, **named)
        return call
    for name in counts:
        monkeypatch.setattr(C.huggingface.C, name, count(name, getattr(C.huggingface.C, name)))
    return counts


def test_a_training_step_does_not_wait_for_the_gpu(kind, device, monkeypatch):
    """transformers' check for packed positions does; it is for positions that the caller gives."""
    plain, patched = pair(kind, device)
    looked, check = [], transformers.masking_utils.find_packed_sequence_indices
    monkeypatch.setattr(transformers.masking_utils, "find_packed_sequence_indices",
                        lambda *arguments: (looked.append(1), check(*arguments))[1])
    ids = tokens(device)
    packed = torch.arange(ids.shape[1], device=device).remainder(ids.shape[1] // 2).expand(ids.shape)
    for model in (plain, patched):
        model.train().config.use_cache = False
    outputs = patched(input_ids=ids, labels=ids)
    assert not looked and outputs[0] is outputs.loss and "cache" not in str(outputs.keys()) and len(outputs) == 1
    if device.type == "cuda" and kind != "gemma2":  # transformers' mask for eager attention waits by itself
        torch.cuda.set_sync_debug_mode("error")
        try:
            patched(input_ids=ids, labels=ids).loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(outputs.loss, plain(input_ids=ids, labels=ids).loss, rtol=1e-4, atol=1e-4)
    looked.clear()
    with_positions = patched(input_ids=ids, labels=ids, position_ids=packed).loss
    assert looked
    torch.testing.assert_close(with_positions, plain(input_ids=ids, labels=ids, position_ids=packed).loss, rtol=1e-4, atol=1e-4)
    assert abs(with_positions - outputs.loss) > 1e-4


def test_recompute_reaches_every_layer(monkeypatch):
    _, patched = pair("llama")
    C.restore(patched)
    C.apply(patched, recompute=True)
    seen = []
    for name in ("attention_output_mlp", "attention_output_mlp_rope"):
        original = getattr(C.huggingface.C, name)
        monkeypatch.setattr(C.huggingface.C, name, lambda *t, original=original, **named: (
            seen.append(named["recompute"]), original(*t, **named))[1])
    patched(tokens())
    assert seen == [True, True]


def loss_and_gradients(model, ids):
    model.zero_grad()
    loss = model.train()(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_recomputes_and_gives_the_same_bits(reentrant, monkeypatch):
    _, patched = pair("llama")
    for layer in patched.model.layers:  # keeps the layers apart, as checkpointing does
        layer.register_forward_hook(lambda module, args, output: None)
    ids, counts = tokens(), counted(monkeypatch)
    _, expected = loss_and_gradients(patched, ids)
    assert counts["linear_rope"] == 2
    patched.gradient_checkpointing_enable({"use_reentrant": reentrant})
    _, again = loss_and_gradients(patched, ids)
    assert counts["linear_rope"] == 6 and counts["attention_output_mlp_rope"] == 0
    assert all(torch.equal(a, b) for a, b in zip(expected, again))


def test_layers_in_a_row_project_for_the_next_one(kind, device, monkeypatch):
    _, patched = pair(kind, device)
    ids, counts = tokens(device), counted(monkeypatch)
    loss, gradients = loss_and_gradients(patched, ids)
    first = "linear_qknorm_rope" if kind == "qwen3" else "linear_rope"
    if kind in ("gemma2", "gemma3"):  # norms behind the products: their layers stay apart
        assert counts["attention_output_mlp"] == 2 and counts["attention_output_mlp_rope"] == 0
        return
    assert counts[first] == 1 and counts["attention_output_mlp_rope"] == 1 and counts["attention_output_mlp"] == 1
    hook = patched.model.layers[0].register_forward_hook(lambda module, args, output: None)
    apart, expected = loss_and_gradients(patched, ids)
    assert counts[first] == 3 and counts["attention_output_mlp_rope"] == 1
    torch.testing.assert_close(loss, apart, rtol=1e-6, atol=1e-6)
    for (name, _), a, b in zip(patched.named_parameters(), gradients, expected):
        assert relative(a, b) < 1e-5, name
    hook.remove()
    again, repeated = loss_and_gradients(patched, ids)
    assert torch.equal(again, loss) and all(torch.equal(a, b) for a, b in zip(gradients, repeated))


class Wrapped(torch.nn.Module):
    """What activation checkpointing of torch.distributed puts around a layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments, **named):
        return torch.utils.checkpoint.checkpoint(self.inner, *arguments, use_reentrant=False, **named)


def wrap_forward(layer):
    """As accelerate does, whose hooks move inputs between devices."""
    before = layer.forward
    layer.forward = functools.update_wrapper(lambda x, *arguments, **named: before(x * 1.5, *arguments, **named), before)


BETWEEN = {
    "a wrapper around the next layer's forward": lambda m: wrap_forward(m.model.layers[1]),
    "wrappers around every forward": lambda m: [wrap_forward(layer) for layer in m.model.layers],
    "a hook that changes the stream": lambda m: m.model.layers[0].register_forward_hook(lambda module, a, out: out * 1.5),
    "a hook that changes it in place": lambda m: m.model.layers[0].register_forward_hook(
        lambda module, a, out: out.mul_(1.5)),
    "a hook on the next layer's input": lambda m: m.model.layers[1].register_forward_pre_hook(
        lambda module, a: (a[0] * 1.5, *a[1:])),
    "a hook on the next norm": lambda m: m.model.layers[1].input_layernorm.register_forward_hook(
        lambda module, a, out: out * 1.5),
    "an adapter": lambda m: setattr(m.model.layers[1].self_attn, "k_proj", Scaled(m.model.layers[1].self_attn.k_proj)),
    "a layer left out": lambda m: m.model.layers.__delitem__(1),
    "layers in another order": lambda m: m.model.layers.insert(0, m.model.layers.pop(1)),
    "a frozen layer": lambda m: m.model.layers[1].requires_grad_(False),
    "checkpointed layers": lambda m: [m.model.layers.__setitem__(i, Wrapped(l)) for i, l in enumerate(list(m.model.layers))],
    "the second layer checkpointed": lambda m: m.model.layers.__setitem__(1, Wrapped(m.model.layers[1])),
}


@pytest.mark.parametrize("change", list(BETWEEN))
def test_what_stands_between_two_layers_is_respected(change):
    model, patched = pair("llama")
    ids, grads = tokens(), []
    for m in (model, patched):
        BETWEEN[change](m)
        m.config.num_hidden_layers = m.model.config.num_hidden_layers = len(m.model.layers)
        m.train()(input_ids=ids, labels=ids).loss.backward()
        grads.append([p.grad for p in m.parameters()])
    for (name, _), a, b in zip(model.named_parameters(), *grads):
        assert (a is None) == (b is None) and (a is None or relative(b, a) < 2e-5), name


@pytest.mark.parametrize("where", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_layers_see_the_whole_gradient(where):
    model, patched = pair("llama")
    ids, seen = tokens(), ([], [])
    for m, into in zip((model, patched), seen):
        for layer in m.model.layers:
            getattr(layer, where)(lambda module, *gradients, into=into: into.append(gradients[-1][0].clone()) or None)
        m.train()(input_ids=ids, labels=ids).loss.backward()
    assert len(seen[0]) == 2
    for a, b in zip(*seen):
        assert relative(b, a) < 2e-5


def test_compile(device):
    model, patched = pair("qwen3", device)
    ids = tokens(device)
    compiled = torch.compile(patched.train(), backend="aot_eager")
    a, b = model.train()(input_ids=ids, labels=ids).loss, compiled(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    a.backward(), b.backward()
    for p, q in zip(model.parameters(), patched.parameters()):
        assert relative(q.grad, p.grad) < 2e-5


def test_a_decoder_layer_compiles_without_a_break():
    _, patched = pair("llama")
    layer, x = patched.model.layers[0], torch.randn(2, 8, 64)
    position = patched.model.rotary_emb(x, torch.arange(8)[None])
    compiled = torch.compile(lambda x: layer(x, position_embeddings=position), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x, position_embeddings=position))


def test_hooks_on_decoder_layers_run():
    _, patched = pair("llama")
    seen = []
    for layer in patched.model.layers:
        layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    patched.eval()(tokens())
    assert seen == [(2, 20, 64)] * 2


def test_hidden_states_and_attentions_are_what_the_model_gives():
    model, patched = pair("llama")
    ids = tokens()
    a, b = (m.eval()(ids, output_hidden_states=True) for m in (model, patched))
    assert len(a.hidden_states) == len(b.hidden_states)
    for p, q in zip(a.hidden_states, b.hidden_states):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-4)
    for m in (model, patched):
        m.set_attn_implementation("eager")
    a, b = (m(ids, output_attentions=True) for m in (model, patched))
    for p, q in zip(a.attentions, b.attentions, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-4)


class Scaled(torch.nn.Module):
    """An adapter around a projection, as LoRA puts it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, x):
        return 2 * self.inner(x)


def test_an_adapter_or_a_hook_put_in_later_is_respected():
    model, patched = pair("llama")
    ids = tokens()
    for m in (model, patched):
        m.eval().model.layers[0].self_attn.q_proj = Scaled(m.model.layers[0].self_attn.q_proj)
        m.model.layers[1].mlp.down_proj.register_forward_hook(lambda module, args, output: output * 3)
    torch.testing.assert_close(patched(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def changed(forward):
    """A function that gives a module a class of its own, with this forward if any."""
    def change(module):
        own = {} if forward is None else {"forward": lambda self, *a, **k: forward(super(made, self).forward(*a, **k))}
        made = type(f"My{type(module).__name__}", (type(module),), own)
        module.__class__ = made
    return change


def replaced(module):
    before = module.forward
    module.forward = lambda *arguments, **named: before(*arguments, **named) * 3


CHANGES = {  # what the user changes: where, how, how many layers are left
    "a subclass of a layer": ("", changed(None), 0),
    "a subclass of a layer with a forward": ("", changed(lambda x: x * 3), 1),
    "a subclass of the attention": ("self_attn", changed(None), 0),
    "a subclass of the attention with a forward": ("self_attn", changed(lambda made: (made[0] * 3, made[1])), 1),
    "a subclass of the MLP with a forward": ("mlp", changed(lambda x: x * 3), 1),
    "a subclass of the norm with a forward": ("post_attention_layernorm", changed(lambda x: x * 3), 1),
    "another activation": ("mlp", lambda mlp: setattr(mlp, "act_fn", torch.nn.ReLU()), 1),
    "another forward of the MLP": ("mlp", replaced, 1),
    "another forward of a projection": ("mlp.gate_proj", replaced, 1),
    "a hook on the activation": ("mlp.act_fn", lambda m: m.register_forward_hook(lambda m, a, out: out * 3), 0),
    "a hook on a head's norm": ("self_attn.k_norm", lambda m: m.register_forward_hook(lambda m, a, out: out * 3), 0),
    "a parametrisation": ("self_attn.v_proj", lambda m: torch.nn.utils.parametrizations.weight_norm(m), 1),
}


@pytest.mark.parametrize("change, before", [(change, before) for change in CHANGES for before in (True, False)
                                            if before or CHANGES[change][0]])  # a layer's own class is read once
def test_what_a_user_changed_is_respected(change, before):
    path, function, left = CHANGES[change]
    model, patched = pair("qwen3")
    C.restore(patched)
    for m, patch in ((model, lambda m: None), (patched, C.apply)):
        layer = m.model.layers[1].get_submodule(path)
        report = (function(layer), patch(m)) if before else (patch(m), function(layer))
    assert not before or [name for name, _ in report[1].left] == ["model.layers.1"][:left], report[1]
    ids = tokens()
    a, b = (m.train()(input_ids=ids, labels=ids).loss for m in (model, patched))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    a.backward(), b.backward()
    for (name, p), q in zip(model.named_parameters(), patched.parameters()):
        assert relative(q.grad, p.grad) < 2e-5, name


class Tuned(transformers.LlamaForCausalLM):
    """A model of one's own that changes nothing of the forward."""


class Doubled(transformers.LlamaForCausalLM):
    def forward(self, *arguments, **named):
        made = super().forward(*arguments, **named)
        made.loss = made.loss * 2
        return made


def test_subclasses_of_a_model():
    ids, losses = tokens(), []
    for cls in (transformers.LlamaForCausalLM, Tuned, Doubled):
        torch.manual_seed(0)
        model = cls(CONFIGS["llama"]()).train()
        assert bool(C.apply(model).left) == (cls is Doubled)
        losses.append(model(input_ids=ids, labels=ids).loss)
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(2 * losses[0], losses[2], rtol=1e-5, atol=1e-5)


def test_the_loss_can_stay_the_models_own():
    model, patched = pair("llama")
    C.restore(patched)
    assert C.apply(patched, loss=False).left == [("LlamaForCausalLM: the loss", "not asked for (loss=False)")]
    ids = tokens()
    a, b = (m.train()(input_ids=ids, labels=ids) for m in (model, patched))
    torch.testing.assert_close(a.logits, b.logits, rtol=1e-4, atol=1e-4)


def test_a_patched_model_can_be_pickled():
    _, patched = pair("llama")
    again = pickle.loads(pickle.dumps(patched))
    ids = tokens()
    assert torch.equal(again.eval()(ids).logits, patched.eval()(ids).logits) and not C.apply(again).left
    with torch.no_grad():
        patched.lm_head.weight.zero_()
    assert again(ids).logits.any()


def test_a_model_without_a_layer_that_coda_knows_is_refused():
    for model, layers in ((transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50)),
                           "GPT2Block"),
                          (transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=2)),
                           "MixtralDecoderLayer")):
        with pytest.raises(ValueError, match=f"{type(model).__name__} has no decoder layer that coda knows.*{layers}"):
            C.apply(model)
        assert not [m for m in model.modules() if "forward" in m.__dict__]


def test_what_does_not_fit_is_left_and_the_report_says_why():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, "hidden_size": 96})  # heads of 24
    model = transformers.LlamaForCausalLM(config)
    report = C.apply(model)
    assert [name for name, _ in report.left] == ["model.layers.0", "model.layers.1"]
    assert "head_dim 24" in report.left[0][1] and "head_dim 24" in str(report)
    config = transformers.LlamaConfig(**SIZES, hidden_act="relu", mlp_bias=False)
    assert "relu" in C.apply(transformers.LlamaForCausalLM(config)).left[0][1]


def test_the_loss_takes_the_number_of_items_and_shifted_labels():
    model, patched = pair("llama")
    ids = tokens()
    for options in ({"num_items_in_batch": 11}, {"num_items_in_batch": torch.tensor(11)}, {"shift_labels": ids}):
        a, b = (m.train()(input_ids=ids, labels=ids, **options).loss for m in (model, patched))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    patched.loss_function = lambda **kwargs: torch.tensor(7.0)
    assert patched(input_ids=ids, labels=ids).loss == 7


def test_a_few_steps_of_training_give_the_same_losses(device):
    model, patched = pair("llama", device)
    ids, losses = tokens(device), []
    for m in (model, patched):
        optimizer, curve = torch.optim.AdamW(m.train().parameters(), lr=1e-3), []
        for _ in range(5):
            loss = m(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
        losses.append(curve)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4)
    assert losses[0][-1] < losses[0][0]
