#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden sets next to this script with Hugging Face transformers (README.md has the layout).

  make_goldens.py [NAME ...]      all of them, or the named ones

Run it with the python that setup_reference.sh prints.
"""
import copy, json, os, random, shutil, sys, tempfile
from types import SimpleNamespace

import golden_weights as rule
import hf_ref
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
NUM_STEPS = 6
NUM_SAMPLES = {"qwen3_moe": 96, "qwen3_5_moe": 32}  # stored elements of a tensor, by family
NUM_SIGNS = 4      # stored sums with random signs
LONGEST = 128
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)

MROPE = dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.5, mrope_interleaved=True,
             mrope_section=[3, 3, 2])

# name -> kind, size, seed, changes to the configuration, fused experts, style of config.json
GOLDENS = {
    "tiny_s0": dict(seed=0),
    "tiny_s1": dict(seed=1),
    "tiny_s2": dict(seed=2),
    "small_s0": dict(seed=0, size="small"),
    "small_s1": dict(seed=1, size="small"),
    "no_norm_topk": dict(seed=3, set=dict(norm_topk_prob=False)),
    "dense_first": dict(seed=4, set=dict(num_hidden_layers=4, mlp_only_layers=[0])),
    "sparse_step": dict(seed=5, set=dict(num_hidden_layers=4, decoder_sparse_step=2)),
    "tied": dict(seed=6, set=dict(tie_word_embeddings=True)),
    "odd_sizes": dict(seed=7, set=dict(vocab_size=509, num_experts=12, moe_intermediate_size=36)),
    "attention_bias": dict(seed=8, set=dict(attention_bias=True)),
    "rope_linear": dict(seed=9, set=dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5))),
    "rope_yarn": dict(seed=10, set=dict(max_position_embeddings=LONGEST, rope_parameters=YARN)),
    "rope_yarn_factor": dict(seed=11, published=True,
                             set=dict(max_position_embeddings=LONGEST,
                                      rope_parameters=dict(YARN, rope_theta=1e6, attention_factor=1.25, beta_fast=24.0,
                                                           beta_slow=2.0))),
    "published_config": dict(seed=12, published=True,
                             set=dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "fused_experts": dict(seed=13, fused=True),
    "qwen3_5_whole": dict(kind="qwen3_5_moe", seed=14, fused=True,
                          set=dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])),
    "qwen3_5_text": dict(kind="qwen3_5_moe_text", seed=15, published=True,
                         set=dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
                                  linear_num_key_heads=4)),
    "qwen3_5_odd": dict(kind="qwen3_5_moe", seed=17,
                        set=dict(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"],
                                 vocab_size=509, num_experts=12, moe_intermediate_size=36,
                                 shared_expert_intermediate_size=20, tie_word_embeddings=True, attention_bias=True,
                                 linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=12,
                                 linear_value_head_dim=24, linear_conv_kernel_dim=3, rope_parameters=MROPE)),
}


def kind_of(spec):
    return spec.get("kind", "qwen3_moe")


def family_of(spec):
    return kind_of(spec).removesuffix("_text")


def config_of(spec):
    return hf_ref.config_of(kind_of(spec), spec.get("size", "tiny"), copy.deepcopy(spec.get("set", {})))


def config_json(spec):
    if family_of(spec) == "qwen3_5_moe":
        return qwen3_5_config_json(spec)
    config = config_of(spec)
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.dtype = "float32"
    out = json.loads(config.to_json_string(use_diff=False))
    keep = {"architectures", "attention_bias", "decoder_sparse_step", "dtype", "head_dim", "hidden_act", "hidden_size",
            "initializer_range", "intermediate_size", "max_position_embeddings", "mlp_only_layers", "model_type",
            "moe_intermediate_size", "norm_topk_prob", "num_attention_heads", "num_experts_per_tok",
            "num_hidden_layers", "num_key_value_heads", "num_local_experts", "rms_norm_eps", "rope_parameters",
            "router_aux_loss_coef", "sliding_window", "tie_word_embeddings", "transformers_version", "use_cache",
            "use_sliding_window", "vocab_size"}
    out = {k: v for k, v in sorted(out.items()) if k in keep}
    if spec.get("published"):  # the spelling of the checkpoints on the hub, which transformers 5 no longer writes
        rope = out.pop("rope_parameters")
        out["rope_theta"] = rope.pop("rope_theta")
        out["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        out["num_experts"] = out.pop("num_local_experts")
        out["torch_dtype"] = out.pop("dtype")
    return out


def qwen3_5_config_json(spec):
    config = config_of(spec)
    config.architectures = [hf_ref.model_class(config).__name__]
    config.dtype = "float32"
    out = json.loads(config.to_json_string())
    if spec.get("published"):  # as on the hub: what is always so is said, and layers follow from an interval
        del out["layer_types"]
        out.update(full_attention_interval=2, attn_output_gate=True, mlp_only_layers=[], mamba_ssm_dtype="float32")
    return out


def weight_plan(config, spec):
    """weights.json: the tensors of the checkpoint in the order of transformers, with the numbers of the rule."""
    with tempfile.TemporaryDirectory() as scratch:
        hf_ref.model_class(config)._from_config(config, dtype=torch.float32).save_pretrained(scratch)
        tensors = load_file(os.path.join(scratch, "model.safetensors"))
    if spec.get("fused"):
        tensors = hf_ref.fuse_experts(tensors)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if kind_of(spec) == "qwen3_5_moe":  # what the hub's checkpoints hold beside the model
        hidden = config.text_config.hidden_size
        shapes.update({"mtp.fc.weight": [hidden, 2 * hidden], "mtp.norm.weight": [hidden]})
    rows = []
    for name in sorted(shapes):
        mean, scale = rule.mean_and_scale(name, family_of(spec))
        rows.append(dict(name=name, shape=shapes[name], mean=mean, scale=scale))
    return dict(seed=spec["seed"], tensors=rows)


def write_plan(plan, path):
    rows = ",\n    ".join(json.dumps(row) for row in plan["tensors"])
    tensors = [rule.values(t["name"], plan["seed"], t["shape"], t["mean"], t["scale"]) for t in plan["tensors"]]
    with open(path, "w") as file:
        file.write('{\n  "seed": %d,\n  "checksum": "%016x",\n  "tensors": [\n    %s\n  ]\n}\n'
                   % (plan["seed"], rule.checksum(tensors), rows))


def make_batches(vocab, rng, seed):
    """Steps with one to four samples of unlike lengths. Labels: a prompt without, holes, a labelled first position
    (which has no target), and one sample without any target beside others that have some."""
    steps = []
    for step in range(NUM_STEPS):
        samples = []
        for _ in range(1 + (step + seed) % 4):
            length = rng.choice([2, 3, 7, 12, 19, 33, 48])
            ids = [rng.randrange(vocab) for _ in range(length)]
            labels = list(ids)
            for t in range(rng.choice([0, 1, length // 2])):
                labels[t] = -100
            labels = [-100 if t and rng.random() < 0.1 else y for t, y in enumerate(labels)]
            labels[-1] = ids[-1]
            samples.append(dict(input_ids=ids, labels=labels))
        if step == 3:
            samples.append(dict(input_ids=[rng.randrange(vocab) for _ in range(5)], labels=[-100] * 5))
        if step == 4:
            samples.append(dict(input_ids=[rng.randrange(vocab) for _ in range(120)], labels=None))
            samples[-1]["labels"] = list(samples[-1]["input_ids"])
            samples.append(dict(input_ids=[step], labels=[step]))
        steps.append(dict(samples=samples))
    return steps


def make_rows(vocab, rng):
    return [dict(input_ids=[rng.randrange(vocab) for _ in range(n)]) for n in (2, 1, 17, 64, 5, 96)]


def write_jsonl(rows, path):
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def summary(tensor, name, num_samples):
    """What is kept of one tensor: [largest |x|, 2-norm, sums with random signs] and chosen elements."""
    flat = tensor.detach().numpy().astype(np.float64).reshape(-1)
    sign_bits = rule.bits("signs:" + name, 0, flat.size)
    sums = []
    for k in range(NUM_SIGNS):
        sign = 1.0 - 2.0 * ((sign_bits >> np.uint64(k)) & np.uint64(1)).astype(np.float64)
        sums.append(float((sign * flat).sum()))
    if flat.size <= num_samples:
        at = np.arange(flat.size)
    else:
        at = (rule.bits("samples:" + name, 0, num_samples) % np.uint64(flat.size)).astype(np.int64)
    stats = [float(np.abs(flat).max()), float(np.sqrt((flat * flat).sum())), *sums]
    return {name: torch.tensor(flat[at].astype(np.float32)), name + "#": torch.tensor(stats, dtype=torch.float64)}


def summarise(source, target, num_samples):
    out = {}
    for name, tensor in load_file(source).items():
        out.update(summary(tensor, name, num_samples))
    save_file(out, target)
    os.chmod(target, 0o644)


def router_margin(model, rows):
    """The smallest gap between the last chosen and the first rejected probability: a tiny one makes a golden brittle."""
    gaps = []

    def look(module, inputs, output):
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, module.weight.shape[1]), module.weight)
        top = torch.softmax(logits.float(), -1).topk(module.top_k + 1, -1).values
        gaps.append((top[:, -2] - top[:, -1]).min().item())

    hooks = [module.register_forward_hook(look) for name, module in model.named_modules() if name.endswith("mlp.gate")]
    with torch.no_grad():
        for row in rows:
            model(input_ids=torch.tensor([row["input_ids"]]))
    for hook in hooks:
        hook.remove()
    return min(gaps)


def make_inputs(model_dir, vocab, seed):
    """Batches and rows whose routing is clear: two right programs may differ in the last bits of a probability."""
    model = hf_ref.load(model_dir).eval()
    for attempt in range(20):
        rng = random.Random(1000 * attempt + seed)
        batches, rows = make_batches(vocab, rng, seed), make_rows(vocab, rng)
        gap = router_margin(model, rows + [s for step in batches for s in step["samples"]])
        if gap > 4e-6:
            return batches, rows, gap
    raise RuntimeError("no inputs with clear routing were found")


def rounded(value):
    return [rounded(v) for v in value] if isinstance(value, list) else float(f"{value:.9g}")


def read_jsonl(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def folder_of(name):
    return os.path.join(HERE, family_of(GOLDENS[name]), name)


def num_ids(spec):
    """Ids that samples are made of: the last ones of a model with a vision tower stand for images."""
    return config_of(spec).get_text_config().vocab_size - (4 if kind_of(spec) == "qwen3_5_moe" else 0)


def write_model(golden, folder):
    """config.json and weights of a golden as a model directory."""
    shutil.copy(os.path.join(golden, "config.json"), folder)
    tensors = rule.load(os.path.join(golden, "weights.json"))
    save_file({k: torch.from_numpy(v) for k, v in tensors.items()}, os.path.join(folder, "model.safetensors"),
              metadata={"format": "pt"})


def write_scores(model, out, rows, name):
    scored = os.path.join(model, name)
    hf_ref.score(SimpleNamespace(model=model, dtype="float32", input=os.path.join(out, rows), output=scored))
    write_jsonl([dict(logprobs=rounded(r["logprobs"])) for r in read_jsonl(scored)], os.path.join(out, name))


def make_positions(model, out, vocab, seed):
    """Rows whose tokens stand at places of their own on three axes: text, an image of 3 x 4 in it, text again; and any places."""
    rng = np.random.default_rng(seed + 1000)
    image = [(5, 5 + i // 4, 5 + i % 4) for i in range(12)]
    places = [(i, i, i) for i in range(5)] + image + [(9 + i, 9 + i, 9 + i) for i in range(8)]
    rows = [places, [tuple(rng.integers(0, 300, 3).tolist()) for _ in range(70)]]
    write_jsonl([dict(input_ids=rng.integers(0, vocab, len(row)).tolist(), position_ids=[list(axis) for axis in zip(*row)])
                 for row in rows], os.path.join(out, "position_rows.jsonl"))
    write_scores(model, out, "position_rows.jsonl", "position_score.jsonl")


def make(name, spec, out):
    config_dict = config_json(spec)
    os.makedirs(out)
    with open(os.path.join(out, "config.json"), "w") as file:
        json.dump(config_dict, file, indent=2)
        file.write("\n")
    config = config_of(spec)
    num_samples = NUM_SAMPLES[family_of(spec)]
    plan = weight_plan(config, spec)
    write_plan(plan, os.path.join(out, "weights.json"))
    with tempfile.TemporaryDirectory() as scratch:
        write_model(out, scratch)
        batches, rows, gap = make_inputs(scratch, num_ids(spec), spec["seed"])
        write_jsonl(batches, os.path.join(out, "batches.jsonl"))
        write_jsonl(rows, os.path.join(out, "rows.jsonl"))
        write_scores(scratch, out, "rows.jsonl", "score.jsonl")
        if family_of(spec) == "qwen3_5_moe":
            make_positions(scratch, out, num_ids(spec), spec["seed"])
        norms = []
        for optim, lr in (("sgd", 0.05), ("adamw", 1e-3)):
            traced, kept = os.path.join(scratch, optim), os.path.join(out, optim)
            os.makedirs(kept)
            hf_ref.trace(SimpleNamespace(model=scratch, batches=os.path.join(out, "batches.jsonl"), out=traced,
                                         optim=optim, lr=lr, max_norm=1.0, wd=0.01, dtype="float32"))
            trace = read_jsonl(os.path.join(traced, "trace.jsonl"))
            norms += [row["grad_norm"] for row in trace]
            write_jsonl([dict(step=r["step"], loss=rounded(r["loss"]), grad_norm=rounded(r["grad_norm"]))
                         for r in trace], os.path.join(kept, "trace.jsonl"))
            if optim == "sgd":  # the first gradients do not depend on the optimizer
                summarise(os.path.join(traced, "grads_step1.safetensors"),
                          os.path.join(out, "grads_step1.safetensors"), num_samples)
            summarise(os.path.join(traced, "final.safetensors"), os.path.join(kept, "final.safetensors"), num_samples)
        assert min(norms) > 1.0, "clipping must be active"
        print(f"{name}: gradient norms {min(norms):.3f} to {max(norms):.3f}, smallest router gap {gap:.1e}", flush=True)


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or GOLDENS:
        out = folder_of(name)
        shutil.rmtree(out, ignore_errors=True)
        make(name, GOLDENS[name], out)


if __name__ == "__main__":
    main()
