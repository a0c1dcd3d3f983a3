#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reference results from Hugging Face transformers, to compare ExpertMesh against.

  hf_ref.py make  KIND OUT [--seed N] [--size tiny|small|bench] [--set key=json ...] [--fused | --split]
      A Hugging Face model directory with random weights. KIND: qwen3_moe, qwen3_5_moe (the text model
      under `model.language_model`, a small `model.visual`, and `mtp.*` tensors as the public
      checkpoints have them), qwen3_5_moe_text. Experts are stored as the public checkpoints of the kind
      store them (qwen3_moe split per expert, qwen3_5_moe fused) unless --fused or --split says otherwise.
  hf_ref.py score MODEL IN.jsonl OUT.jsonl [--dtype float32]
      For each row {"input_ids": [...]}: {"logprobs": [natural log p of tokens 1..n-1]}.
  hf_ref.py trace MODEL BATCHES.jsonl OUT_DIR [--optim sgd|adamw] [--lr X] [--max-norm X] [--wd X] [--dtype float32]
      Each row of BATCHES.jsonl is one optimizer step: {"samples": [{"input_ids": [...], "labels": [...]}]}
      (labels -100 = not supervised, same length). Samples run one by one, unpadded, so nothing leaks between
      them; the loss is the mean negative log-likelihood over all supervised shifted labels of the step.
      Writes OUT_DIR/trace.jsonl {step, loss, grad_norm}, grads_step1.safetensors and final.safetensors.
  hf_ref.py bench MODEL [--tokens T] [--batch B] [--steps N] [--experts grouped_mm|eager] [--ranks N] [--threads N] [--rows R.jsonl]
      Full-parameter AdamW training steps in bf16 (B sequences of T tokens a rank); with --ranks, torch FSDP2 over
      Gloo processes. --rows gives the sequences (equal lengths) instead of random
      ones. Prints one JSON line {tokens_per_s, step_s, losses, peak_rss_mib_all_ranks}.

fp32 unless --dtype says otherwise; float64 is fp64 also where transformers asks for fp32. Everything runs on the CPU, without network.
"""
import argparse, contextlib, copy, json, os, re, resource, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
from safetensors.torch import load_file, save_file

SIZES = {
    "qwen3_moe": {
        "tiny": dict(hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8,
                     num_experts_per_tok=2, vocab_size=512, norm_topk_prob=True, decoder_sparse_step=1),
        "small": dict(hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=4,
                      num_attention_heads=8, num_key_value_heads=4, head_dim=32, num_experts=16,
                      num_experts_per_tok=4, vocab_size=2048, norm_topk_prob=True, decoder_sparse_step=1),
        "bench": dict(hidden_size=512, intermediate_size=1024, moe_intermediate_size=192, num_hidden_layers=8,
                      num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=64,
                      num_experts_per_tok=8, vocab_size=151936, norm_topk_prob=True, decoder_sparse_step=1,
                      tie_word_embeddings=True),
    },
    "qwen3_5_moe_text": {
        "tiny": dict(hidden_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32,
                     num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8,
                     num_experts_per_tok=2, vocab_size=512, linear_num_key_heads=2, linear_num_value_heads=4,
                     linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                     rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25,
                                          mrope_interleaved=True, mrope_section=[2, 1, 1])),
        "small": dict(hidden_size=128, moe_intermediate_size=64, shared_expert_intermediate_size=64,
                      num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64, num_experts=16,
                      num_experts_per_tok=4, vocab_size=2048, linear_num_key_heads=4, linear_num_value_heads=8,
                      linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4,
                      rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25,
                                           mrope_interleaved=True, mrope_section=[4, 2, 2])),
        "bench": dict(hidden_size=512, moe_intermediate_size=128, shared_expert_intermediate_size=128,
                      num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=64,
                      num_experts_per_tok=8, vocab_size=151936, linear_num_key_heads=4, linear_num_value_heads=8,
                      linear_key_head_dim=64, linear_value_head_dim=64, tie_word_embeddings=True,
                      rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25,
                                           mrope_interleaved=True, mrope_section=[4, 2, 2])),
    },
}


def config_of(kind, size, overrides):
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeTextConfig
    if kind == "qwen3_moe":
        return Qwen3MoeConfig(**{**SIZES[kind][size], **overrides})
    text = {**SIZES["qwen3_5_moe_text"][size], **overrides}
    if kind == "qwen3_5_moe_text":
        return Qwen3_5MoeTextConfig(**text)
    vision = dict(depth=1, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=text["hidden_size"],
                  patch_size=16, spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=64)
    v = text["vocab_size"]
    return Qwen3_5MoeConfig(text_config=text, vision_config=vision, image_token_id=v - 1, video_token_id=v - 2,
                            vision_start_token_id=v - 3, vision_end_token_id=v - 4,
                            tie_word_embeddings=text.get("tie_word_embeddings", False))


def make(args):
    torch.manual_seed(args.seed)
    overrides = {k: json.loads(v) for k, v in (s.split("=", 1) for s in args.set)}
    config = config_of(args.kind, args.size, overrides)
    model = model_class(config)._from_config(config, dtype=torch.float32)
    with torch.no_grad():  # norms away from their neutral start, so that a (1 + w) mistake shows
        for name, p in model.named_parameters():
            if p.ndim == 1 and "norm" in name:
                p.add_(torch.randn_like(p) * 0.1)
            elif p.ndim >= 2:
                p.mul_(3.0)  # logits far enough from uniform that routing and loss are informative
    model.to(getattr(torch, args.dtype)).save_pretrained(args.out)
    path = os.path.join(args.out, "model.safetensors")
    if args.fused or (args.kind == "qwen3_5_moe" and not args.split):
        save_file(fuse_experts(load_file(path)), path, metadata={"format": "pt"})
    if args.kind == "qwen3_5_moe":  # tensors that public checkpoints carry and that must survive a save
        tensors = load_file(path)
        g = torch.Generator().manual_seed(args.seed + 1)
        h = config.text_config.hidden_size
        tensors["mtp.fc.weight"] = torch.randn(h, 2 * h, generator=g).to(torch.bfloat16)
        tensors["mtp.norm.weight"] = torch.randn(h, generator=g).to(torch.bfloat16)
        save_file(tensors, path, metadata={"format": "pt"})
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "out": args.out}))


def fuse_experts(tensors):
    """Per-expert gate/up/down projections -> gate_up_proj [E, 2I, H] and down_proj [E, H, I], as the public
    Qwen3.5-MoE checkpoints store them. Expert ids sort as numbers."""
    groups, out = {}, {}
    for name, t in tensors.items():
        m = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if m:
            groups.setdefault(m[1], {}).setdefault(m[3], {})[int(m[2])] = t
        else:
            out[name] = t
    for prefix, g in groups.items():
        stack = {k: torch.stack([v[i] for i in range(len(v))]) for k, v in g.items()}
        out[prefix + ".gate_up_proj"] = torch.cat([stack["gate"], stack["up"]], 1).contiguous()
        out[prefix + ".down_proj"] = stack["down"].contiguous()
    return out


def model_class(config):
    from transformers import Qwen3MoeForCausalLM
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as m
    return {"qwen3_moe": Qwen3MoeForCausalLM, "qwen3_5_moe_text": m.Qwen3_5MoeForCausalLM,
            "qwen3_5_moe": m.Qwen3_5MoeForConditionalGeneration}[config.model_type]


class WideTorch:
    """The torch module, where fp32 means fp64."""
    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def fp64_throughout(dtype=torch.float64):
    """Where dtype is fp64, what transformers computes in fp32 whatever a model's dtype is fp64 too: norms, softmax,
    rotary angles, the gated delta rule."""
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
    from transformers.models.qwen3_moe import modeling_qwen3_moe
    modules, to_float = (modeling_qwen3_moe, modeling_qwen3_5_moe), torch.Tensor.float
    if dtype == torch.float64:
        for module in modules:
            module.torch = WideTorch()
        torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        for module in modules:
            module.torch = torch
        torch.Tensor.float = to_float


def load(path, dtype=torch.float32, experts="grouped_mm"):
    from transformers import AutoConfig
    config = AutoConfig.from_pretrained(path)
    if dtype in (torch.float32, torch.float64):
        experts = "eager"
    model = model_class(config).from_pretrained(path, dtype=dtype, attn_implementation="sdpa",
                                                experts_implementation=experts)
    return model


def token_logprobs(model, ids, position_ids=None):
    """position_ids: one list an axis; None: 0, 1, 2, ... on each."""
    given = {} if position_ids is None else dict(position_ids=torch.tensor(position_ids)[:, None])
    logits = model(input_ids=torch.tensor([ids]), **given).logits[0].float()
    return torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def logprobs_of_row(model, row):
    return token_logprobs(model, row["input_ids"], row.get("position_ids"))


def score(args):
    dtype = getattr(torch, args.dtype)
    with fp64_throughout(dtype), torch.no_grad(), open(args.input) as rows, open(args.output, "w") as out:
        model = load(args.model, dtype).eval()
        for row in rows:
            out.write(json.dumps({"logprobs": logprobs_of_row(model, json.loads(row)).tolist()}) + "\n")


def trace(args):
    with fp64_throughout(getattr(torch, args.dtype)):
        run_steps(args)


def perturb(model, scale, seed):
    """Each weight by a random fraction of itself: what follows shows how far a change of that size is carried."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + scale * torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype))


def run_steps(args):
    model = load(args.model, getattr(torch, args.dtype)).train()
    if args.perturb:
        perturb(model, args.perturb, args.perturb_seed)
    # What the loss never reads is not trained: vision tower, MTP head.
    params = {n: p for n, p in model.named_parameters() if "visual" not in n}
    opt = (torch.optim.SGD(params.values(), lr=args.lr) if args.optim == "sgd" else
           torch.optim.AdamW(params.values(), lr=args.lr, weight_decay=args.wd))
    os.makedirs(args.out, exist_ok=True)
    log = open(os.path.join(args.out, "trace.jsonl"), "w")
    for step, row in enumerate(open(args.batches), 1):
        samples = json.loads(row)["samples"]
        if step == args.save_before_step:
            copy.deepcopy(model).to(torch.float32).save_pretrained(os.path.join(args.out, "before_step%d" % step))
        n = sum(sum(y != -100 for y in s["labels"][1:]) for s in samples)
        total = 0.0
        for s in samples:
            lp = token_logprobs(model, s["input_ids"])
            mask = torch.tensor(s["labels"][1:]) != -100
            loss = -(lp * mask).sum() / n
            loss.backward()
            total += loss.item()
        if step == 1:
            save_file({k: (p.grad if p.grad is not None else torch.zeros_like(p)).contiguous()
                       for k, p in params.items()}, os.path.join(args.out, "grads_step1.safetensors"))
        norm = torch.nn.utils.clip_grad_norm_(params.values(), args.max_norm)
        opt.step()
        opt.zero_grad()
        log.write(json.dumps({"step": step, "loss": total, "grad_norm": norm.item()}) + "\n")
    save_file({k: p.detach().contiguous() for k, p in params.items()}, os.path.join(args.out, "final.safetensors"))


def bench(args):
    if args.ranks == 1:
        bench_rank(0, args)
    else:
        import torch.multiprocessing as mp
        mp.spawn(bench_rank, (args,), nprocs=args.ranks)


def bench_rank(rank, args):
    model = load(args.model, torch.bfloat16, args.experts).train()
    if args.ranks > 1:  # what LLaMA-Factory v1's fsdp2 backend does: a unit a decoder layer, then the root
        import torch.distributed as dist
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=rank, world_size=args.ranks)
        torch.set_num_threads(args.threads)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        body = getattr(model.model, "language_model", model.model)
        for layer in body.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.ranks == 1)
    vocab = (getattr(model.config, "text_config", None) or model.config).vocab_size
    if args.rows:  # step s of all ranks together takes the next batch * ranks rows, rank r every ranks-th of them
        rows = torch.tensor([json.loads(r)["input_ids"] for r in open(args.rows)])
        batches = [rows[s + rank:s + args.batch * args.ranks:args.ranks]
                   for s in range(0, len(rows) - args.batch * args.ranks + 1, args.batch * args.ranks)]
    else:
        g = torch.Generator().manual_seed(rank)
        batches = [torch.randint(0, vocab, (args.batch, args.tokens), generator=g) for _ in range(args.steps)]
    times, losses = [], []
    for ids in batches[:args.steps]:
        t = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        times.append(time.perf_counter() - t)
    best = min(times[1:] or times)
    peak = torch.tensor(float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
    if args.ranks > 1:
        dist.all_reduce(peak)
        dist.destroy_process_group()
    if rank == 0:
        print(json.dumps({"tokens_per_s": args.ranks * ids.numel() / best, "step_s": best, "losses": losses, "peak_rss_mib_all_ranks": int(peak)}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(required=True)
    c = sub.add_parser("make"); c.set_defaults(run=make)
    c.add_argument("kind", choices=["qwen3_moe", "qwen3_5_moe", "qwen3_5_moe_text"]); c.add_argument("out")
    c.add_argument("--seed", type=int, default=0); c.add_argument("--size", default="tiny")
    c.add_argument("--dtype", default="float32"); c.add_argument("--set", nargs="*", default=[])
    layout = c.add_mutually_exclusive_group()
    layout.add_argument("--fused", action="store_true"); layout.add_argument("--split", action="store_true")
    c = sub.add_parser("score"); c.set_defaults(run=score)
    c.add_argument("model"); c.add_argument("input"); c.add_argument("output"); c.add_argument("--dtype", default="float32")
    c = sub.add_parser("trace"); c.set_defaults(run=trace)
    c.add_argument("model"); c.add_argument("batches"); c.add_argument("out")
    c.add_argument("--optim", choices=["sgd", "adamw"], default="sgd"); c.add_argument("--lr", type=float, default=1e-2)
    c.add_argument("--max-norm", type=float, default=1.0); c.add_argument("--wd", type=float, default=0.01)
    c.add_argument("--dtype", default="float32"); c.add_argument("--perturb", type=float, default=0.0)
    c.add_argument("--perturb-seed", type=int, default=0)
    c.add_argument("--save-before-step", type=int, default=0)
    c = sub.add_parser("bench"); c.set_defaults(run=bench)
    c.add_argument("model"); c.add_argument("--tokens", type=int, default=512); c.add_argument("--batch", type=int, default=4)
    c.add_argument("--steps", type=int, default=3); c.add_argument("--experts", default="grouped_mm")
    c.add_argument("--ranks", type=int, default=1); c.add_argument("--threads", type=int, default=1)
    c.add_argument("--port", type=int, default=29611); c.add_argument("--rows")
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
