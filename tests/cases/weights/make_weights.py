#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the weight files of this folder, byte for byte the same on every machine.

  make_weights.py           write headers/, models/ and configs/ next to this script
  make_weights.py --check   compare what is there with what it would write; exit 1 and list differences

Standard library only. headers/ holds single safetensors files (some broken on purpose), models/ holds model
directories, configs/ holds config.json contents. expected.json says what each must lead to; it is edited by hand.
"""
import json, os, struct, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1}
files = {}  # path -> bytes


# ---------------------------------------------------------------------------------------------- encoding
def encode(dtype, values):
    if dtype == "BF16":  # values must be exactly representable
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack("<%d%s" % (len(values), {"F32": "f", "F16": "e", "I64": "q", "U8": "B"}[dtype]), *values)


def raw(header, data=b"", length=None, pad=0):
    """A file from a header (object or bytes); `length` overrides the true header length."""
    h = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    h += b" " * pad
    return struct.pack("<Q", len(h) if length is None else length) + h + data


def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, shape, values)"""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, values) in tensors.items():
        body = encode(dtype, values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    pad = -len(json.dumps(header, separators=(",", ":"))) % 8
    return raw(header, data, pad=pad)


def text(obj):
    return (json.dumps(obj) + "\n").encode()


class Numbers:
    """Multiples of 2^-16 in [-0.5, 0.5): exact in fp32 after scaling by a power of two."""
    def __init__(self, seed):
        self.x = seed

    def __call__(self, n, scale=1.0, shift=0.0):
        out = []
        for _ in range(n):
            self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
            out.append(((self.x >> 40) % 65536 / 65536 - 0.5) * scale + shift)
        return out


# ---------------------------------------------------------------------------------------------- models
def qwen3_config(**over):
    c = {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "eos_token_id": 1,
         "head_dim": 4, "hidden_act": "silu", "hidden_size": 8, "intermediate_size": 12,
         "max_position_embeddings": 64, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 4,
         "norm_topk_prob": True, "num_attention_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
         "num_hidden_layers": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_scaling": None,
         "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
         "vocab_size": 16}
    c.update(over)
    return {k: v for k, v in c.items() if v != "absent"}


def qwen3_tensors(c, seed, split=True):
    n, h, d = Numbers(seed), c["hidden_size"], c["head_dim"]
    q, kv, i, e = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, c["moe_intermediate_size"], c["num_experts"]
    t = {"model.embed_tokens.weight": ("F32", [c["vocab_size"], h], n(c["vocab_size"] * h, 2))}
    for l in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % l
        t[p + "input_layernorm.weight"] = ("F32", [h], n(h, 0.5, 1))
        t[p + "self_attn.q_proj.weight"] = ("F32", [q, h], n(q * h, 1))
        t[p + "self_attn.k_proj.weight"] = ("F32", [kv, h], n(kv * h, 1))
        t[p + "self_attn.v_proj.weight"] = ("F32", [kv, h], n(kv * h, 1))
        t[p + "self_attn.o_proj.weight"] = ("F32", [h, q], n(h * q, 1))
        t[p + "self_attn.q_norm.weight"] = ("F32", [d], n(d, 0.5, 1))
        t[p + "self_attn.k_norm.weight"] = ("F32", [d], n(d, 0.5, 1))
        t[p + "post_attention_layernorm.weight"] = ("F32", [h], n(h, 0.5, 1))
        t[p + "mlp.gate.weight"] = ("F32", [e, h], n(e * h, 2))
        gate, up, down = ([n(h * i, 2) for _ in range(e)] for _ in range(3))
        x = p + "mlp.experts."
        if split:
            for k in range(e):
                t[x + "%d.gate_proj.weight" % k] = ("F32", [i, h], gate[k])
                t[x + "%d.up_proj.weight" % k] = ("F32", [i, h], up[k])
                t[x + "%d.down_proj.weight" % k] = ("F32", [h, i], down[k])
        else:
            t[x + "gate_up_proj"] = ("F32", [e, 2 * i, h], [v for k in range(e) for v in gate[k] + up[k]])
            t[x + "down_proj"] = ("F32", [e, h, i], [v for k in range(e) for v in down[k]])
    t["model.norm.weight"] = ("F32", [h], n(h, 0.5, 1))
    if not c["tie_word_embeddings"]:
        t["lm_head.weight"] = ("F32", [c["vocab_size"], h], n(c["vocab_size"] * h, 2))
    return t


def qwen35_config(**over):
    c = {"dtype": "float32", "eos_token_id": 1, "full_attention_interval": 2, "head_dim": 8,
         "hidden_act": "silu", "hidden_size": 8, "layer_types": ["linear_attention", "full_attention"],
         "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
         "linear_value_head_dim": 4, "max_position_embeddings": 64, "model_type": "qwen3_5_moe_text",
         "moe_intermediate_size": 4, "num_attention_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
         "num_hidden_layers": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
         "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5,
                             "rope_theta": 10000000, "rope_type": "default"},
         "shared_expert_intermediate_size": 4, "tie_word_embeddings": False, "vocab_size": 16}
    c.update(over)
    c = {k: v for k, v in c.items() if v != "absent"}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 15, "model_type": "qwen3_5_moe",
            "text_config": c, "tie_word_embeddings": c.get("tie_word_embeddings", False), "video_token_id": 14,
            "vision_config": {"depth": 1, "hidden_size": 4, "in_channels": 3, "intermediate_size": 4, "num_heads": 1,
                              "model_type": "qwen3_5_moe", "num_position_embeddings": 4, "out_hidden_size": 8,
                              "patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 2},
            "vision_end_token_id": 13, "vision_start_token_id": 12}


def qwen35_tensors(config, seed):
    c, n = config["text_config"], Numbers(seed)
    h, d, i, e, s = (c[k] for k in ("hidden_size", "head_dim", "moe_intermediate_size", "num_experts",
                                    "shared_expert_intermediate_size"))
    heads, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    vh, kd, vd, conv = (c["linear_num_value_heads"], c["linear_num_key_heads"] * c["linear_key_head_dim"],
                        c["linear_num_value_heads"] * c["linear_value_head_dim"], c["linear_conv_kernel_dim"])
    m = "model.language_model."
    t = {m + "embed_tokens.weight": ("F32", [c["vocab_size"], h], n(c["vocab_size"] * h, 2))}
    for l, kind in enumerate(c["layer_types"]):
        p = m + "layers.%d." % l
        t[p + "input_layernorm.weight"] = ("F32", [h], n(h, 0.5))  # norms multiply by 1 + w
        if kind == "linear_attention":
            p += "linear_attn."
            t[p + "A_log"] = ("F32", [vh], n(vh, 2, 0.5))
            t[p + "dt_bias"] = ("F32", [vh], n(vh, 1, 1))
            t[p + "conv1d.weight"] = ("F32", [2 * kd + vd, 1, conv], n((2 * kd + vd) * conv, 1))
            t[p + "in_proj_qkv.weight"] = ("F32", [2 * kd + vd, h], n((2 * kd + vd) * h, 2))
            t[p + "in_proj_z.weight"] = ("F32", [vd, h], n(vd * h, 2))
            t[p + "in_proj_a.weight"] = ("F32", [vh, h], n(vh * h, 1))
            t[p + "in_proj_b.weight"] = ("F32", [vh, h], n(vh * h, 1))
            t[p + "norm.weight"] = ("F32", [c["linear_value_head_dim"]], n(c["linear_value_head_dim"], 0.5, 1))
            t[p + "out_proj.weight"] = ("F32", [h, vd], n(h * vd, 2))
        else:
            p += "self_attn."
            t[p + "q_proj.weight"] = ("F32", [2 * heads, h], n(2 * heads * h, 1))  # query and its output gate
            t[p + "k_proj.weight"] = ("F32", [kv, h], n(kv * h, 1))
            t[p + "v_proj.weight"] = ("F32", [kv, h], n(kv * h, 1))
            t[p + "o_proj.weight"] = ("F32", [h, heads], n(h * heads, 1))
            t[p + "q_norm.weight"] = ("F32", [d], n(d, 0.5))
            t[p + "k_norm.weight"] = ("F32", [d], n(d, 0.5))
        p = m + "layers.%d." % l
        t[p + "post_attention_layernorm.weight"] = ("F32", [h], n(h, 0.5))
        p += "mlp."
        t[p + "gate.weight"] = ("F32", [e, h], n(e * h, 2))
        t[p + "experts.gate_up_proj"] = ("F32", [e, 2 * i, h], n(e * 2 * i * h, 2))
        t[p + "experts.down_proj"] = ("F32", [e, h, i], n(e * h * i, 2))
        t[p + "shared_expert.gate_proj.weight"] = ("F32", [s, h], n(s * h, 2))
        t[p + "shared_expert.up_proj.weight"] = ("F32", [s, h], n(s * h, 2))
        t[p + "shared_expert.down_proj.weight"] = ("F32", [h, s], n(h * s, 2))
        t[p + "shared_expert_gate.weight"] = ("F32", [1, h], n(h, 2))
    t[m + "norm.weight"] = ("F32", [h], n(h, 0.5))
    t["lm_head.weight"] = ("F32", [c["vocab_size"], h], n(c["vocab_size"] * h, 2))
    # Never trained, must survive a save unchanged: a few vision tensors and the multi-token-prediction head (BF16).
    t["model.visual.patch_embed.proj.weight"] = ("F32", [4, 3, 2, 2, 2], n(96, 1))
    t["model.visual.pos_embed.weight"] = ("F32", [4, 4], n(16, 1))
    bf = lambda k: [round(v * 64) / 64 for v in n(k, 1)]
    t["mtp.fc.weight"] = ("BF16", [h, 2 * h], bf(2 * h * h))
    t["mtp.norm.weight"] = ("BF16", [h], bf(h))
    return t


def model(name, config, tensors, shards=None, index=None, extra=()):
    """shards: list of key lists; index: function that may change the index object."""
    d = "models/" + name + "/"
    files[d + "config.json"] = text(config)
    if shards is None:
        files[d + "model.safetensors"] = safetensors(tensors, {"format": "pt"})
    else:
        names = ["model-%05d-of-%05d.safetensors" % (k + 1, len(shards)) for k in range(len(shards))]
        for name, keys in zip(names, shards):
            files[d + name] = safetensors({k: tensors[k] for k in keys}, {"format": "pt"})
        i = {"metadata": {"total_size": sum(SIZE[t[0]] * len(t[2]) for t in tensors.values())},
             "weight_map": {k: n for n, ks in zip(names, shards) for k in ks}}
        files[d + "model.safetensors.index.json"] = text(index(i, names) if index else i)
    for path, data in extra:
        files[d + path] = data


# ---------------------------------------------------------------------------------------------- headers/
def entry(a, b, dtype="F32", shape=None):
    return {"dtype": dtype, "shape": [(b - a) // 4] if shape is None else shape, "data_offsets": [a, b]}


def headers():
    f = lambda name, data: files.__setitem__("headers/" + name + ".safetensors", data)
    four = encode("F32", [1.0, 2.0, 3.0, 4.0])
    f("ok_one", safetensors({"w": ("F32", [2, 2], [1.0, -2.0, 0.5, 4.0])}, {"format": "pt"}))
    f("ok_kinds", safetensors({"a.f32": ("F32", [3], [1.5, -0.25, 3.0]), "b.bf16": ("BF16", [2, 2], [1.0, -2.0, 0.15625, 96.0]),
                               "c.f16": ("F16", [2], [0.5, -8.0]), "d.i64": ("I64", [2], [-1, 4294967296]),
                               "e.scalar": ("F32", [], [7.0]), "f.none": ("F32", [0, 4], [])}))
    f("ok_any_order", raw({"second": entry(8, 16), "first": entry(0, 8)}, four))
    f("ok_spaces", raw({"w": entry(0, 16)}, four, pad=37))
    f("ok_no_tensors", raw({}))
    f("bad_empty_file", b"")
    f("bad_seven_bytes", b"\x02\0\0\0\0\0\0")
    f("bad_length_zero", raw(b"", b"", 0))
    f("bad_length_past_end", raw({"omega": entry(0, 16)}, four, 4096))
    f("bad_length_6gib", raw(b"{}", b"", 6 * 2**30))
    f("bad_length_2pow63", raw(b"{}", b"", 2**63))
    f("bad_length_all_ones", raw(b"{}", b"", 2**64 - 1))
    f("bad_header_cut", raw(b'{"omega":{"dtype":"F32","shape":[4],"data_off'))
    f("bad_header_not_json", raw(b"pickle\x80\x04.", four))
    f("bad_header_array", raw(b'[{"omega":1}]', four))
    f("bad_header_utf8", raw(b'{"omega\xff":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', four))
    f("bad_duplicate_name", raw(b'{"omega":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                                b'"omega":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', four))
    f("bad_data_short", raw({"omega": entry(0, 16)}, four[:-1]))
    f("bad_data_long", raw({"omega": entry(0, 16)}, four + b"\0"))
    f("bad_overlap", raw({"alpha": entry(0, 12), "beta": entry(8, 16)}, four))
    f("bad_hole", raw({"alpha": entry(0, 4), "beta": entry(8, 16)}, four))
    f("bad_first_not_zero", raw({"alpha": entry(4, 16)}, four))
    f("bad_reversed", raw({"alpha": entry(16, 0, shape=[4])}, four))
    f("bad_negative_offset", raw({"alpha": entry(-16, 0, shape=[4])}, four))
    f("bad_offset_2pow64", raw(b'{"alpha":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]}}', four))
    f("bad_offset_float", raw(b'{"alpha":{"dtype":"F32","shape":[4],"data_offsets":[0.0,16.0]}}', four))
    f("bad_three_offsets", raw(b'{"alpha":{"dtype":"F32","shape":[4],"data_offsets":[0,8,16]}}', four))
    f("bad_shape_wraps", raw({"alpha": entry(0, 0, shape=[2**32, 2**32])}))
    f("bad_shape_negative", raw({"alpha": entry(0, 16, shape=[-1, -4])}, four))
    f("bad_shape_float", raw(b'{"alpha":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}', four))
    f("bad_shape_bytes", raw({"alpha": entry(0, 16, shape=[3])}, four))
    f("bad_dtype_name", raw({"alpha": entry(0, 16, dtype="F31")}, four))
    f("bad_dtype_missing", raw(b'{"alpha":{"shape":[4],"data_offsets":[0,16]}}', four))
    f("bad_metadata_number", raw(b'{"__metadata__":{"step":3},"alpha":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', four))
    f("bad_deep", raw(b'{"alpha":' + b"[" * 650 + b"]" * 650 + b"}"))


# ---------------------------------------------------------------------------------------------- models/, configs/
def pico(**over):
    return qwen3_config(**{**dict(hidden_size=4, head_dim=2, num_hidden_layers=1, num_experts=2, num_experts_per_tok=1,
                                  moe_intermediate_size=2, vocab_size=8, intermediate_size=4), **over})


def models():
    c = qwen3_config()
    model("nano_qwen3", c, qwen3_tensors(c, 1))
    c = qwen35_config()
    model("nano_qwen3_5", c, qwen35_tensors(c, 2))

    # pico: hidden size 4 = 2 x expert width 2, so a transposed gate_up_proj has the right shape and wrong values.
    c = pico()
    split, fused = qwen3_tensors(c, 3), qwen3_tensors(c, 3, split=False)
    keys = list(split)
    model("ok_split", c, split)
    model("ok_fused", c, fused)
    model("ok_sharded", c, split, [keys[:7], keys[7:]])
    tied = pico(tie_word_embeddings=True)
    no_head = {k: v for k, v in split.items() if k != "lm_head.weight"}
    model("ok_tied", tied, no_head)
    twelve = pico(num_experts=12)
    t = qwen3_tensors(twelve, 4)
    for name, (dtype, shape, values) in t.items():
        parts = name.split(".experts.")
        if len(parts) == 2:
            k, proj = parts[1].split(".")[:2]
            t[name] = (dtype, shape, [int(k) + {"gate_proj": 0.0, "up_proj": 100.0, "down_proj": 200.0}[proj]] * len(values))
    model("ok_twelve_experts", twelve, t)

    gone = "model.layers.0.mlp.experts.1.down_proj.weight"
    model("bad_expert_missing", c, {k: v for k, v in split.items() if k != gone})
    model("bad_expert_renamed", c, {k.replace("experts.1.down_proj", "experts.1.w2"): v for k, v in split.items()})
    extra = dict(split)
    for proj in ("gate", "up", "down"):
        extra["model.layers.0.mlp.experts.2.%s_proj.weight" % proj] = split["model.layers.0.mlp.experts.0.%s_proj.weight" % proj]
    model("bad_expert_extra", c, extra)
    model("bad_shape", c, {**split, "model.layers.0.mlp.gate.weight": ("F32", [2, 3], [0.0] * 6)})
    model("bad_vocab", pico(vocab_size=9), split)
    model("bad_no_head", c, no_head)
    model("bad_layer_count", pico(num_hidden_layers=2), split)
    model("bad_shard_missing", c, split, [keys[:7], keys[7:]])
    del files["models/bad_shard_missing/model-00002-of-00002.safetensors"]
    def outside(i, names):
        i["weight_map"]["lm_head.weight"] = "../ok_split/model.safetensors"
        return i
    model("bad_index_outside", c, split, [keys[:7], keys[7:]], outside)
    def promised(i, names):
        i["weight_map"]["lm_head.weight"] = names[0]
        return i
    model("bad_index_promise", c, no_head, [list(no_head)], promised)
    files["models/bad_no_weights/config.json"] = text(c)
    files["models/bad_lfs_pointer/config.json"] = text(c)
    files["models/bad_lfs_pointer/model.safetensors"] = (b"version https://git-lfs.github.com/spec/v1\n"
                                                         b"oid sha256:" + b"0123456789abcdef" * 4 + b"\nsize 4998\n")
    files["models/bad_config_cut/config.json"] = text(c)[:120]


def configs():
    f = lambda name, obj: files.__setitem__("configs/" + name + ".json", text(obj))
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    f("ok_yarn_old_key", qwen3_config(head_dim=16, rope_scaling=yarn, max_position_embeddings=128))
    f("ok_yarn_older_type_key", qwen3_config(head_dim=16, max_position_embeddings=128, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}))
    f("ok_yarn_new_key", qwen3_config(head_dim=16, rope_scaling="absent", rope_theta="absent", max_position_embeddings=128,
                                      rope_parameters={**yarn, "rope_theta": 10000.0}))
    f("ok_v5_names", pico(num_experts="absent", num_local_experts=2, torch_dtype="absent", dtype="float32",
                          rope_theta="absent", rope_scaling="absent",
                          rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}))
    f("ok_dense_and_moe", qwen3_config(num_hidden_layers=4, mlp_only_layers=[0], decoder_sparse_step=1))
    f("ok_sparse_step", qwen3_config(num_hidden_layers=4, decoder_sparse_step=2))
    f("bad_rope_type", qwen3_config(rope_scaling={"rope_type": "spiral", "factor": 2.0}))
    f("bad_rope_type_new_key", qwen35_config(rope_parameters={"rope_type": "corkscrew", "rope_theta": 10000.0}))
    f("bad_model_type", qwen3_config(model_type="qwen4_moe"))
    f("bad_top_k", qwen3_config(num_experts_per_tok=5))
    f("bad_kv_heads", qwen3_config(num_attention_heads=3, num_key_value_heads=2))
    f("bad_no_experts_key", qwen3_config(num_experts="absent"))
    f("bad_hidden_text", qwen3_config(hidden_size="eight"))
    f("bad_layers_zero", qwen3_config(num_hidden_layers=0))
    f("bad_activation", qwen3_config(hidden_act="relu6"))
    f("bad_layer_types_length", qwen35_config(num_hidden_layers=3))
    f("bad_layer_type_name", qwen35_config(layer_types=["linear_attention", "sliding_attention"]))
    f("bad_linear_heads", qwen35_config(linear_num_key_heads=3, linear_num_value_heads=4))
    f("bad_mrope_section", qwen35_config(rope_parameters={
        "mrope_interleaved": True, "mrope_section": [9, 9, 9], "partial_rotary_factor": 0.5, "rope_theta": 10000000,
        "rope_type": "default"}))


def main():
    headers()
    models()
    configs()
    bad = 0
    for path, data in sorted(files.items()):
        full = os.path.join(HERE, path)
        if sys.argv[1:] == ["--check"]:
            if not os.path.exists(full) or open(full, "rb").read() != data:
                bad += 1
                print("differs:", path)
        else:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as out:
                out.write(data)
    print("%d files, %d bytes" % (len(files), sum(map(len, files.values()))))
    sys.exit(1 if bad else 0)


main()
