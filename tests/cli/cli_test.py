#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line, and the help: the exit code, the words, and that nothing is done.

    tests/cli/cli_test.py EXPERTMESH [TEXT ...]
"""
import itertools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import product  # noqa: E402
import tensors  # noqa: E402
from product import CHECKPOINT, CONFIG, DATA, MODEL, NUMERICS, USAGE, Failure  # noqa: E402
from suite import Suite  # noqa: E402

CASES = os.path.join(os.path.dirname(HERE), "cases")
TRAIN = ["model=weights/models/nano_qwen3", "train_dataset=data/tokens.yaml", "output_dir=made", "max_steps=1"]
SCORE = ["score", "--model", "weights/models/ok_split", "--input", "ids.jsonl"]
INIT = ["init", "--config", "weights/models/ok_split/config.json"]
NANO = ["generate", "--model", "weights/models/nano_qwen3"]
ASK = NANO + ["--prompt", "x"]
ROWS = NANO + ["--input", "ids.jsonl", "--max-new-tokens", "4"]
TALKER = ["--model", "talker", "chat_markup=qwen3", "--max-new-tokens", "12"]
EP_2 = ["--ranks", "2", "dist_config.name=fsdpturbo", "dist_config.ep_size=2"]
BENCH = ["bench", "moe", "--workload", "balanced", "--hidden", "16", "--width", "8", "--experts", "8", "--top-k", "2"]
MINIMAL = "config/ok_minimal.yaml"
COUNTER = itertools.count()

# arguments, exit code, what the message holds
MISTAKES = [
    ("unknown_command", ["scor"], USAGE, ["scor", "expertmesh score"]),
    ("unknown_command_far", ["frobnicate"], USAGE, ["frobnicate", "--help"]),
    ("flag_for_a_command", ["--ranks"], USAGE, ["--ranks", "--help"]),
    ("planned_command", ["dpo", MINIMAL], USAGE, ["dpo", "not built yet", "sft"]),
    ("unknown_flag", ["sft", MINIMAL, "--rank", "2"], USAGE, ["--rank", "--ranks"]),
    ("unknown_flag_with_value", ["sft", MINIMAL, "--treads-per-rank=2"], USAGE, ["--treads-per-rank", "--threads-per-rank"]),
    ("unknown_short_flag", ["sft", MINIMAL, "-r", "2"], USAGE, ["-r", "--help"]),
    ("no_config_file", ["sft", "missing.yaml"], CONFIG, ["missing.yaml", "no such file"]),
    ("directory_for_a_config", ["sft", "config"], CONFIG, ["config", "directory"]),
    ("two_config_files", ["sft", MINIMAL, "config/ok_defaults.yaml"], USAGE, ["ok_defaults.yaml", "key=value"]),
    ("no_configuration_at_all", ["sft"], CONFIG, ["model", "train_dataset", "missing"]),
    ("ranks_zero", ["sft", MINIMAL, "--ranks", "0"], USAGE, ["--ranks 0", "1 to"]),
    ("ranks_negative", ["sft", MINIMAL, "--ranks", "-1"], USAGE, ["--ranks -1", "1 to"]),
    ("ranks_many", ["sft", MINIMAL, "--ranks", "100000"], USAGE, ["--ranks 100000", "256"]),
    ("ranks_word", ["sft", MINIMAL, "--ranks", "x"], USAGE, ["--ranks", "\"x\"", "integer"]),
    ("ranks_fraction", ["sft", MINIMAL, "--ranks=1.5"], USAGE, ["--ranks", "\"1.5\"", "integer"]),
    ("ranks_huge", ["sft", MINIMAL, "--ranks", "99999999999999999999"], USAGE, ["--ranks", "99999999999999999999", "integer"]),
    ("ranks_without_value", ["sft", MINIMAL, "--ranks"], USAGE, ["--ranks needs one value"]),
    ("threads_zero", ["sft"] + TRAIN + ["--threads-per-rank", "0"], USAGE, ["--threads-per-rank 0", "1 to"]),
    ("key_typo", ["sft"] + TRAIN + ["learning_rte=1"], CONFIG, ["learning_rte", "learning_rate", "override #5"]),
    ("key_typo_nested", ["sft"] + TRAIN + ["dist_config.name=fsdp2", "dist_config.epsize=1"], CONFIG, ["epsize", "ep_size"]),
    ("key_without_value", ["sft"] + TRAIN + ["learning_rate="], CONFIG, ["learning_rate"]),
    ("value_without_key", ["sft"] + TRAIN + ["=3"], CONFIG, ["=3", "key=value"]),
    ("value_of_wrong_kind", ["sft"] + TRAIN + ["max_steps=many"], CONFIG, ["max_steps", "many", "integer"]),
    ("packed_without_varlen_attention", ["sft"] + TRAIN + ["batching_strategy=dynamic_padding_free"], CONFIG,
     ["batching_strategy dynamic_padding_free with flash_attn sdpa", "flash_attention_2"]),
    ("dynamic_without_steps", ["sft"] + TRAIN[:3] + ["batching_strategy=dynamic_batching"], CONFIG,
     ["batching_strategy dynamic_batching without max_steps", "set max_steps"]),
    ("dynamic_with_save_epochs", ["sft"] + TRAIN + ["batching_strategy=dynamic_batching", "save_epochs=1"], CONFIG,
     ["save_epochs with batching_strategy dynamic_batching", "save_steps"]),
    ("score_without_model", ["score", "--input", "ids.jsonl"], USAGE, ["--model is required"]),
    ("score_without_input", ["score", "--model", "weights/models/ok_split"], USAGE, ["--input is required"]),
    ("score_no_such_model", ["score", "--model", "nope", "--input", "ids.jsonl"], MODEL, ["nope"]),
    ("score_no_such_rows", ["score", "--model", "weights/models/ok_split", "--input", "nope.jsonl"], DATA, ["nope.jsonl", "no such file"]),
    ("score_directory_for_rows", ["score", "--model", "weights/models/ok_split", "--input", "data"], DATA, ["data", "directory"]),
    ("score_text_without_tokenizer", ["score", "--model", "weights/models/ok_split", "--input", "text.jsonl"], MODEL, ["tokenizer.json"]),
    ("score_bf16_word", SCORE + ["--bf16", "maybe"], USAGE, ["--bf16", "maybe", "true", "false"]),
    ("score_with_a_training_key", SCORE + ["batching_strategy=padding_free", "flash_attn=flash_attention_2"], CONFIG,
     ["batching_strategy has no effect", "Leave it out"]),
    ("generate_with_a_training_key", ["generate", "--model", "weights/models/ok_split", "--prompt", "x", "learning_rate=1"], CONFIG,
     ["learning_rate has no effect"]),
    ("score_model_twice", SCORE + ["model=other"], USAGE, ["--model", "model=other", "Keep one"]),
    ("generate_bf16_twice", ["generate", "--model", "weights/models/ok_split", "--prompt", "x", "--bf16", "true", "bf16=false"], USAGE,
     ["--bf16 true", "bf16=false"]),
    ("score_numbers_overrides_as_typed", SCORE + ["max_steps=3"], CONFIG, ["override #1 max_steps=3"]),
    ("score_with_config_file", SCORE + [MINIMAL], USAGE, [MINIMAL, "key=value"]),
    ("score_output_in_no_directory", SCORE + ["--output", "nowhere/scores.jsonl"], DATA, ["nowhere/scores.jsonl"]),
    ("generate_without_model", ["generate", "--prompt", "x"], USAGE, ["--model is required"]),
    ("generate_neither", NANO, USAGE, ["neither", "--prompt", "--input"]),
    ("generate_both", ASK + ["--input", "ids.jsonl"], USAGE, ["both", "--prompt", "--input"]),
    ("generate_flag_typo", ASK + ["--temprature", "1"], USAGE, ["--temprature", "--temperature"]),
    ("generate_temperature_below_0", ASK + ["--temperature", "-1"], USAGE, ["--temperature -1", "0"]),
    ("generate_temperature_nan", ASK + ["--temperature", "nan"], USAGE, ["--temperature nan"]),
    ("generate_temperature_word", ASK + ["--temperature", "hot"], USAGE, ["--temperature", "\"hot\"", "number"]),
    ("generate_top_p_0", ASK + ["--top-p", "0"], USAGE, ["--top-p 0", "above 0"]),
    ("generate_top_p_2", ASK + ["--top-p", "2"], USAGE, ["--top-p 2", "at most 1"]),
    ("generate_top_k_below_0", ASK + ["--top-k", "-1"], USAGE, ["--top-k -1", "below 0"]),
    ("generate_top_k_fraction", ASK + ["--top-k", "1.5"], USAGE, ["--top-k", "\"1.5\"", "integer"]),
    ("generate_greedy_and_temperature", ASK + ["--greedy", "--temperature", "1"], USAGE, ["--greedy", "--temperature"]),
    ("generate_greedy_and_top_k", ASK + ["--greedy", "--top-k", "5"], USAGE, ["--greedy", "--top-k"]),
    ("generate_greedy_and_seed", ASK + ["--greedy", "--seed", "5"], USAGE, ["--greedy", "--seed"]),
    ("generate_temperature_0_and_top_p", ASK + ["--temperature", "0", "--top-p", "0.9"], USAGE, ["--temperature 0", "--top-p"]),
    ("generate_seed_below_0", ASK + ["--seed", "-1"], USAGE, ["--seed -1"]),
    ("generate_no_new_tokens", ASK + ["--max-new-tokens", "0"], USAGE, ["--max-new-tokens 0", "1 or more"]),
    ("generate_too_many_new_tokens", ASK + ["--max-new-tokens", "9999999999"], USAGE, ["--max-new-tokens 9999999999"]),
    ("generate_batch_0", ROWS + ["--batch", "0"], USAGE, ["--batch 0", "1 or more"]),
    ("generate_bf16_word", ASK + ["--bf16", "maybe"], USAGE, ["--bf16", "maybe", "true", "false"]),
    ("generate_thinking_word", ASK + ["--thinking", "hard"], USAGE, ["--thinking", "hard", "true", "false"]),
    ("generate_thinking_raw", ASK + ["--raw", "--thinking", "true"], USAGE, ["--thinking", "--raw"]),
    ("generate_thinking_without_template", ASK + ["--thinking", "true"], USAGE, ["--thinking", "no chat template", "chat_markup"]),
    ("generate_thinking_with_chatml", ["generate", "--prompt", "x", "--model", "talker", "chat_markup=chatml", "--thinking", "true"], CONFIG,
     ["thinking", "chatml"]),
    ("generate_thinking_without_messages", ["generate", "--input", "ids.jsonl", "--thinking", "true"] + TALKER, USAGE,
     ["--thinking", "no row of ids.jsonl has messages"]),
    ("generate_raw_with_rows", ROWS + ["--raw"], USAGE, ["--raw", "--input"]),
    ("generate_empty_prompt", NANO + ["--prompt", ""], USAGE, ["--prompt is empty"]),
    ("generate_with_config_file", ROWS + [MINIMAL], USAGE, [MINIMAL, "key=value"]),
    ("generate_no_such_model", ["generate", "--model", "nope", "--prompt", "x"], MODEL, ["nope"]),
    ("generate_no_such_rows", NANO + ["--input", "nope.jsonl"], DATA, ["nope.jsonl", "no such file"]),
    ("generate_directory_for_rows", NANO + ["--input", "data"], DATA, ["data", "directory"]),
    ("generate_text_without_tokenizer", NANO + ["--input", "text.jsonl"], MODEL, ["tokenizer.json"]),
    ("generate_prompt_without_tokenizer", ASK, MODEL, ["tokenizer.json"]),
    ("generate_id_outside", ["generate", "--model", "weights/models/ok_split", "--input", "far.jsonl"], DATA, ["far.jsonl:1", "511", "8 rows"]),
    ("generate_answered_row", ["generate", "--input", "answered.jsonl"] + TALKER, DATA, ["answered.jsonl:2", "last message", "assistant"]),
    ("generate_output_in_no_directory", ROWS + ["--output", "nowhere/rows.jsonl"], DATA, ["nowhere/rows.jsonl"]),
    ("generate_vllm", ROWS + ["sample_backend=vllm"], CONFIG, ["sample_backend", "vllm"]),
    ("generate_settings_of_wrong_kind", ["generate", "--model", "hot", "--input", "ids.jsonl"], MODEL,
     ["hot/generation_config.json", "temperature", "boiling"]),
    ("chat_without_model", ["chat"], CONFIG, ["model is missing"]),
    ("chat_no_such_model", ["chat", "--model", "nope"], MODEL, ["nope"]),
    ("chat_no_such_config", ["chat", "nope.yaml"], CONFIG, ["nope.yaml", "no such file"]),
    ("chat_without_tokenizer", ["chat", "--model", "weights/models/nano_qwen3", "chat_markup=qwen3"], MODEL, ["tokenizer.json"]),
    ("chat_flag_typo", ["chat", "--model", "talker", "--sytem", "x"], USAGE, ["--sytem", "--system"]),
    ("chat_top_p", ["chat", "--model", "talker", "--top-p", "1.5"], USAGE, ["--top-p 1.5"]),
    ("init_without_out", ["init", "--preset", "qwen3-moe-tiny"], USAGE, ["--out is required"]),
    ("init_neither", ["init", "--out", "made"], USAGE, ["--config", "--preset", "neither"]),
    ("init_both", INIT + ["--preset", "qwen3-moe-tiny", "--out", "made"], USAGE, ["both", "--config", "--preset"]),
    ("init_preset_typo", ["init", "--preset", "qwen3-moe-tny", "--out", "made"], USAGE, ["qwen3-moe-tny", "qwen3-moe-tiny"]),
    ("init_no_such_config", ["init", "--config", "nope.json", "--out", "made"], MODEL, ["nope.json", "no such file"]),
    ("init_directory_for_config", ["init", "--config", "weights", "--out", "made"], MODEL, ["weights", "directory"]),
    ("init_dtype", INIT + ["--dtype", "fp8", "--out", "made"], USAGE, ["fp8", "bf16", "fp32"]),
    ("init_seed_word", INIT + ["--seed", "abc", "--out", "made"], USAGE, ["--seed", "abc", "integer"]),
    ("init_seed_negative", INIT + ["--seed", "-1", "--out", "made"], USAGE, ["--seed -1"]),
    ("init_no_such_tokenizer", INIT + ["--tokenizer", "nope", "--out", "made"], MODEL, ["nope"]),
    ("init_tokenizer_too_large", INIT + ["--tokenizer", "render/tokenizer", "--out", "made"], MODEL, ["380", "8"]),
    ("init_into_a_model", INIT + ["--out", "weights/models/ok_split"], CHECKPOINT, ["weights/models/ok_split", "holds a model"]),
    ("bench_nothing", ["bench", "--workload", "balanced"], USAGE, ["expertmesh bench moe"]),
    ("bench_typo", ["bench", "mo", "--workload", "balanced"], USAGE, ["\"mo\"", "moe"]),
    ("bench_without_workload", ["bench", "moe"], USAGE, ["--workload is required"]),
    ("bench_workload_typo", ["bench", "moe", "--workload", "hot-rnk"], USAGE, ["hot-rnk", "Did you mean hot-rank"]),
    ("bench_workload_far", ["bench", "moe", "--workload", "x"], USAGE, ["\"x\"", "balanced", "empty-rank", "all"]),
    ("bench_dispatcher_typo", BENCH + ["--dispatcher", "fused,domin"], USAGE, ["domin", "Did you mean domino"]),
    ("bench_dedup_of_shared_memory", BENCH + ["--dispatcher", "mc2-no-dedup"], USAGE, ["mc2-no-dedup"]),
    ("bench_ranks_word", BENCH + ["--ranks", "2,x"], USAGE, ["2,x", "\"x\""]),
    ("bench_ranks_zero", BENCH + ["--ranks", "0"], USAGE, ["\"0\""]),
    ("bench_ranks_do_not_divide", BENCH + ["--ranks", "2,3"], USAGE, ["3 ranks do not divide 8 experts"]),
    ("bench_ep_size_does_not_divide", BENCH + ["--ranks", "4", "--ep-size", "3"], USAGE, ["--ep-size 3", "4 ranks"]),
    ("bench_top_k_too_many", BENCH[:-2] + ["--top-k", "9"], USAGE, ["--top-k 9", "--experts 8"]),
    ("bench_tokens_zero", BENCH + ["--tokens", "0"], USAGE, ["--tokens 0", "1 or more"]),
    ("bench_rounds_zero", BENCH + ["--rounds", "0"], USAGE, ["--rounds 0", "1 or more"]),
    ("bench_dtype", BENCH + ["--dtype", "fp8"], USAGE, ["fp8", "bf16", "fp32"]),
    ("bench_links_of_no_speed", BENCH + ["--mb-per-second", "0"], USAGE, ["--mb-per-second 0", "above 0"]),
    ("bench_preset_typo", ["bench", "moe", "--workload", "all", "--preset", "qwen3-moe-tny"], USAGE, ["qwen3-moe-tny", "qwen3-moe-tiny"]),
    ("bench_preset_and_size", ["bench", "moe", "--workload", "all", "--preset", "qwen3-moe-tiny", "--experts", "4"], USAGE,
     ["--experts 4", "--preset qwen3-moe-tiny"]),
    ("bench_json_in_no_directory", BENCH + ["--json", "nowhere/times.json"], DATA, ["nowhere/times.json"]),
    ("list_nothing", ["list"], USAGE, ["models", "presets"]),
    ("list_typo", ["list", "modles"], USAGE, ["modles", "models"]),
    ("list_too_much", ["list", "models", "presets"], USAGE, ["presets", "too many"]),
    ("version_too_much", ["version", "x"], USAGE, ["x", "too many"]),
    ("fault_that_does_not_parse", SCORE, USAGE, ["EXPERTMESH_FAULT", "train.loss", "do="], {"EXPERTMESH_FAULT": "train.loss:rank=1"}),
    ("ranks_under_a_launcher", ["sft"] + TRAIN + ["--ranks", "2"], USAGE, ["--ranks 2", "torchrun", "rank 0 of 2"],
     {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}),
    ("half_a_launcher", ["sft"] + TRAIN, product.SETUP, ["RANK is set", "WORLD_SIZE is not"], {"RANK": "0"}),
]


def make_folder(folder):
    for name in ("config", "data", "weights", "render"):
        shutil.copytree(os.path.join(CASES, name), os.path.join(folder, name), copy_function=shutil.copyfile)
    for directory, _, _ in os.walk(folder):
        os.chmod(directory, 0o755)
    with open(os.path.join(folder, "ids.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"input_ids": [1, 5, 2]}\n')
    with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"text": "one"}\n')
    with open(os.path.join(folder, "far.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"input_ids": [511]}\n')
    with open(os.path.join(folder, "answered.jsonl"), "w", encoding="utf-8") as file:
        for role in ("user", "assistant"):
            file.write('{"messages": [{"role": "%s", "content": "x"}]}\n' % role)
    with open(os.path.join(folder, "many.jsonl"), "w", encoding="utf-8") as file:
        for length in (1, 2, 3, 5, 8, 13, 21):
            file.write('{"input_ids": %s}\n' % [(7 * length + i) % 16 for i in range(length)])
    copy_model(folder, "ok_split", "hot")
    with open(os.path.join(folder, "hot", "generation_config.json"), "w", encoding="utf-8") as file:
        file.write('{"temperature": "boiling"}')
    copy_model(folder, "nano_qwen3", "broken")
    fill_with_nan(os.path.join(folder, "broken", "model.safetensors"), "lm_head.weight")


def copy_model(folder, name, to):
    shutil.copytree(os.path.join(folder, "weights/models", name), os.path.join(folder, to))


def fill_with_nan(path, tensor):
    header, start = tensors.read_header(path)
    begin, end = header[tensor]["data_offsets"]
    with open(path, "r+b") as file:
        file.seek(start + begin)
        file.write(b"\xff" * (end - begin))


def test_mistake(arguments, code, contains, env=None):
    folder = "made_%d" % next(COUNTER)  # what a run that should be refused would leave
    arguments = [argument.replace("made", folder) for argument in arguments]
    run = EXPERTMESH(arguments, env=env).expect_code(code).expect_within(10)
    for text in contains:
        if text.lower() not in run.err.lower():
            run.fail("the message does not hold %r" % text)
    if run.out:
        run.fail("a fault is said on stderr, not on stdout")
    if not run.err.startswith("error["):
        run.fail("the message does not start with error[...]")
    for name in (folder, "nowhere", "outputs"):
        if os.path.exists(os.path.join(EXPERTMESH.folder, name)):
            run.fail("left a folder %s" % name)


def test_help(arguments):
    run = EXPERTMESH(arguments).expect_code(0).expect("Example: expertmesh")
    if run.err:
        run.fail("help goes to stdout")


def test_list(what, words):
    EXPERTMESH(["list", what]).expect_code(0).expect(*words)


def test_bench():
    """All workloads and dispatchers: the table says each, the file holds the figures."""
    arguments = ["bench", "moe", "--workload", "all"] + BENCH[4:] + ["--tokens", "24", "--rounds", "1", "--ranks", "2,4", "--json", "times.json"]
    EXPERTMESH(arguments).expect_code(0).expect("hot-rank: half of the tokens", "fused-no-dedup", "4 ranks (threads)")
    with open(os.path.join(EXPERTMESH.folder, "times.json")) as file:
        runs = json.load(file)["runs"]
    names = {(run["workload"], run["ranks"]) for run in runs}
    if len(runs) != 16 or len(names) != 16:
        raise Failure("the file has %s" % sorted(names))
    for run in runs:
        rows = {row["dispatcher"]: row for row in run["dispatchers"]}
        if list(rows) != ["eager", "fused", "fused-no-dedup", "mc2", "domino"]:
            raise Failure("dispatchers %s" % list(rows))
        eager, fused = rows["eager"], rows["fused"]
        if eager["to_eager"] != 1 or eager["saved_bytes"] != 0 or not eager["sent_bytes"] > 0 or not eager["tokens_per_s"] > 0:
            raise Failure("eager: %s" % eager)
        if run["ranks"] == 2 and run["workload"] != "spread" and not fused["saved_bytes"] > 0:
            raise Failure("%s: fused saves nothing" % run["workload"])
    slow = BENCH + ["--tokens", "64", "--rounds", "1", "--ranks", "2", "--dispatcher", "fused,auto", "--mb-per-second", "1"]
    EXPERTMESH(slow).expect_code(0).expect("links 1 MB/s", "auto takes ")


def test_version():
    for arguments in (["version"], ["--version"]):
        EXPERTMESH(arguments).expect_code(0).expect("expertmesh ", "libtorch", "processor", "engines", "threads")


def test_init_and_alias():
    """What the help promises: a preset becomes a model, `train` is `sft`, and a model that is there is kept."""
    EXPERTMESH(["init", "--preset", "qwen3-moe-tiny", "--seed", "7", "--dtype", "fp32", "--out", "tiny"]).expect_code(0).expect("seed 7")
    EXPERTMESH(["train", "model=tiny", "train_dataset=data/tokens.yaml", "output_dir=trained", "max_steps=1"]).expect_code(0)
    config = os.path.join(EXPERTMESH.folder, "trained", "config.json")
    before = os.stat(config).st_mtime_ns
    EXPERTMESH(["init", "--preset", "qwen3-moe-tiny", "--out", "trained"]).expect_code(CHECKPOINT).expect("another --out")
    if os.stat(config).st_mtime_ns != before:
        raise Failure("init changed a model that was there")


def test_init_says_the_dtype():
    """Later commands take it from config.json, whether the preset has the key or not."""
    for dtype, name in (("bf16", "bfloat16"), ("fp32", "float32")):
        EXPERTMESH(["init", "--preset", "qwen3-moe-tiny", "--dtype", dtype, "--out", "in_" + dtype]).expect_code(0)
        with open(os.path.join(EXPERTMESH.folder, "in_" + dtype, "config.json")) as file:
            config = json.load(file)
        if config.get("dtype", config.get("torch_dtype")) != name:
            raise Failure("config.json of %s says %s" % (dtype, config.get("dtype")))


def train_with(output_dir, *overrides, cutoff_len=16):
    """Three steps of two micro-batches on two ranks, fp32; gives the run and its losses."""
    run = EXPERTMESH(["sft"] + TRAIN[:2] + ["output_dir=" + output_dir, "max_steps=3", "bf16=false", "cutoff_len=%d" % cutoff_len,
                                            "micro_batch_size=1", "global_batch_size=4", "learning_rate=0.01"] + list(overrides),
                     ranks=2).expect_code(0)
    losses = [record["loss"] for record in tensors.read_log(os.path.join(EXPERTMESH.folder, output_dir))]
    if len(losses) != 3 or not all(0 < loss < 20 for loss in losses):
        run.fail("the losses of three steps are %s" % losses)
    return run, losses


def test_batching_strategies():
    """Each one trains; packing alone changes nothing of what is computed."""
    losses = {}
    for strategy in ("normal", "padding_free", "dynamic_batching", "dynamic_padding_free"):
        run, losses[strategy] = train_with("batching_" + strategy, "batching_strategy=" + strategy, "flash_attn=flash_attention_2")
        if not re.search(r"  batching +%s\b" % strategy, run.out):
            run.fail("the start table does not name the strategy")
        if strategy.startswith("dynamic"):
            run.expect("up to 16 %s tokens a micro-batch" % ("packed" if "free" in strategy else "padded"))
    if losses["normal"] != losses["padding_free"]:
        raise Failure("normal and padding_free differ: %s and %s" % (losses["normal"], losses["padding_free"]))
    if len({tuple(values) for values in losses.values()}) != 3:
        raise Failure("the dynamic strategies group samples in their own way: %s" % losses)


def test_small_set_repeats_with_a_warning():
    run, _ = train_with("batching_small", "batching_strategy=dynamic_batching", cutoff_len=1024)
    run.expect("samples repeat within it")


def test_attention_choices():
    losses = {}
    for name, words in (("eager", "plain ATen"), ("sdpa", "ATen flash"), ("flash_attention_2", "ATen flash")):  # fp32 has no own tiles
        run, losses[name] = train_with("attention_" + name, "flash_attn=" + name)
        run.expect("%s: %s" % (name, words))
    for name, values in losses.items():
        if any(abs(a - b) > 1e-6 * b for a, b in zip(values, losses["eager"])):
            raise Failure("%s differs from eager: %s and %s" % (name, values, losses["eager"]))


def test_score_writes_whole_output():
    EXPERTMESH(SCORE + ["--output", "scores.jsonl"]).expect_code(0).expect("mean nll", "perplexity")
    with open(os.path.join(EXPERTMESH.folder, "scores.jsonl"), encoding="utf-8") as file:
        lines = file.readlines()
    if len(lines) != 1 or os.path.exists(os.path.join(EXPERTMESH.folder, "scores.jsonl.tmp")):
        raise Failure("scores.jsonl has %d lines, or its temporary file is left" % len(lines))


def generate_rows(name, *arguments):
    """The rows of many.jsonl continued, as objects; checks the shape of the file."""
    run = EXPERTMESH(NANO + ["--input", "many.jsonl", "--output", name, "--max-new-tokens", "6"] + list(arguments)).expect_code(0)
    run.expect("7 rows, 53 prompt tokens", "new tokens")
    if run.out:
        run.fail("rows that go to a file are not printed")
    if os.path.exists(os.path.join(EXPERTMESH.folder, name + ".tmp")):
        run.fail("a temporary file is left")
    with open(os.path.join(EXPERTMESH.folder, name), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if [row["prompt_tokens"] for row in rows] != [1, 2, 3, 5, 8, 13, 21]:
        run.fail("the rows are not those of the input, in its order")
    for row in rows:
        ids = row["output_ids"]
        is_stopped = row["finish_reason"] == "stop"  # config.json: eos_token_id 1
        if set(row) != {"output_ids", "finish_reason", "prompt_tokens", "tokens"} or row["tokens"] != len(ids) or 1 in ids[:-1]:
            run.fail("a row is %s" % row)
        if is_stopped != (ids[-1] == 1) or (not is_stopped and (row["finish_reason"] != "length" or len(ids) != 6)):
            run.fail("a row ends at the wrong place: %s" % row)
    return rows


def test_generate_rows():
    """Whatever batch and mesh, greedy and drawn."""
    for sampling in ([], ["--temperature", "1.2", "--top-k", "0", "--seed", "5"]):
        name = "rows_%d.jsonl" % next(COUNTER)
        rows = generate_rows(name, *sampling)
        for more in (["--batch", "1"], EP_2, EP_2 + ["--batch", "2"]):
            if generate_rows(name, *sampling, *more) != rows:
                raise Failure("%s change what is generated" % more)
        if sampling and generate_rows(name, *sampling[:-1], "6") == rows:
            raise Failure("another seed draws the same")


def test_generate_to_stdout():
    run = EXPERTMESH(NANO + ["--input", "many.jsonl", "--max-new-tokens", "2"]).expect_code(0).expect("greedy", "ends at 1", "fp32")
    if len([json.loads(line) for line in run.out.splitlines()]) != 7:
        run.fail("stdout holds anything but seven rows")


def test_generate_without_finite_scores():
    """The run ends with the code for numerics, and leaves no output."""
    arguments = ["generate", "--model", "broken", "--input", "many.jsonl", "--output", "never.jsonl"]
    for more in ([], ["--temperature", "1"], EP_2):
        EXPERTMESH(arguments + more).expect_code(NUMERICS).expect("row ", "new token 1", "score of token")
        if [name for name in os.listdir(EXPERTMESH.folder) if name.startswith("never")]:
            raise Failure("an output is left")


def test_generate_text():
    """A prompt in a user's turn or as it is; the same text as in a row's answer."""
    with open(os.path.join(EXPERTMESH.folder, "prompts.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "user", "content": "one two"}]}\n{"text": "one two"}\n')
    run = EXPERTMESH(["generate", "--input", "prompts.jsonl"] + TALKER).expect_code(0)
    asked, continued = [json.loads(line) for line in run.out.splitlines()]
    if asked["prompt_tokens"] <= continued["prompt_tokens"]:
        run.fail("the markup of a question has no tokens")
    for row, arguments in ((asked, []), (continued, ["--raw"])):
        prompt = EXPERTMESH(["generate", "--prompt", "one two"] + TALKER + arguments).expect_code(0)
        if prompt.out != row["text"] + "\n":
            prompt.fail("the text is not that of the row: %r" % row["text"])
    thoughtless = EXPERTMESH(["generate", "--prompt", "one two", "--thinking", "false"] + TALKER).expect_code(0)
    thoughtless.expect("1 row, %d prompt tokens" % (asked["prompt_tokens"] + 4))  # <think>, newlines, </think>, newlines


def chat(typed, *arguments):
    return EXPERTMESH(["chat"] + TALKER + list(arguments), typed=typed).expect_code(0)


def test_chat():
    """Piped: one answer a question and nothing else on stdout; `clear` forgets, `exit` ends."""
    first = chat("one\nexit\ntwo\n").out
    if not first.endswith("\n") or "\033" in first:
        raise Failure("the answer is %r" % first)
    for typed, expected in (("", ""), ("exit\n", ""), ("one", first), ("\n  one \r\n\n", first), ("one\nclear\none\n", 2 * first)):
        run = chat(typed)
        if run.out != expected:
            run.fail("%r is answered with %r, not %r" % (typed, run.out, expected))
    twice = chat("one\none\n").out
    if not twice.startswith(first) or twice == 2 * first:
        raise Failure("the second question does not see the first: %r" % twice)
    if chat("one\none\n", *EP_2).out != twice:
        raise Failure("two ranks answer something else")
    if chat("one\n", "--system", "Be brief.").out == first:
        raise Failure("a system message changes nothing")
    chat("one\n").expect("greedy", "cut at 12 tokens")


def test_chat_answer_is_interrupted():
    """The first Ctrl-C stops an answer, and the conversation goes on."""
    for more in ([], EP_2):
        run = EXPERTMESH.start(["chat", "--model", "talker", "chat_markup=qwen3", "--max-new-tokens", "1000000"] + more, typed="one\nexit\n")
        run.wait_for(lambda: len(run.printed()) > 600, what="a part of the answer")
        run.send(signal.SIGINT)
        run.finish().expect_code(0).expect_not("cut at")


def test_interrupted_output_is_gone():
    """What a signal ends leaves neither a part of the output nor its .tmp."""
    path = os.path.join(EXPERTMESH.folder, "cut.jsonl")
    for number in (signal.SIGINT, signal.SIGTERM):
        run = EXPERTMESH.start(["generate", "--model", "talker", "chat_markup=qwen3", "--prompt", "one", "--max-new-tokens", "1000000",
                                "--output", "cut.jsonl"])
        run.wait_for(lambda: os.path.exists(path + ".tmp"), what="the output")
        run.send(number)
        run.finish().expect_code(-number)
        if os.path.exists(path) or os.path.exists(path + ".tmp"):
            raise Failure("the output is left: %s" % os.listdir(EXPERTMESH.folder))


def chat_on_terminal(typed, *arguments, interrupt=False):
    """What a terminal shows of a chat, and how it ends. `interrupt`: Ctrl-C at the first prompt."""
    master, slave = pty.openpty()
    command = [EXPERTMESH.path, "chat"] + TALKER + list(arguments)
    process = subprocess.Popen(command, cwd=EXPERTMESH.folder, env=EXPERTMESH.base_env, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    os.write(master, typed.encode())
    shown = b""
    try:
        while True:
            shown += os.read(master, 4096)
            if interrupt and b"> " in shown:
                process.send_signal(signal.SIGINT)
                interrupt = False
    except OSError:  # the other side is closed
        pass
    os.close(master)
    return shown.decode("utf-8", "replace"), process.wait(60)


def test_chat_on_a_terminal():
    """A prompt, thoughts dimmed and nothing else; Ctrl-C at the prompt ends it."""
    dim = "\033[2m"
    thinking = "chat_markup=qwen3_5"  # its answers begin inside a thought
    for arguments, is_dim in (([], False), ([thinking], True), ([thinking, "--thinking", "false"], False)):
        shown, code = chat_on_terminal("one\nexit\n", *arguments)
        if code != 0 or shown.count("> ") < 2 or (dim in shown) != is_dim or shown.count(dim) != shown.count("\033[0m"):
            raise Failure("%s: exit code %s, shown %r" % (arguments, code, shown))
    shown, code = chat_on_terminal("", interrupt=True)
    if code != -signal.SIGINT:
        raise Failure("Ctrl-C at the prompt gives code %s, shown %r" % (code, shown))


def test_chat_reads_a_config_file():
    with open(os.path.join(EXPERTMESH.folder, "talk.yaml"), "w", encoding="utf-8") as file:
        file.write("model: talker\nchat_markup: qwen3\nmax_new_tokens: 12\nbf16: false\ntrain_dataset: unused.jsonl\n")
    run = EXPERTMESH(["chat", "talk.yaml"], typed="one\n").expect_code(0).expect("up to 12 new tokens", "fp32")
    if run.out != chat("one\n", "--bf16", "false").out:
        run.fail("the file says the same as the flags")


def make_talker():
    """A model with a tokenizer; its answers are noise."""
    EXPERTMESH(["init", "--preset", "qwen3-moe-tiny", "--seed", "3", "--tokenizer", "render/tokenizer", "--out", "talker"]).expect_code(0)


def main():
    global EXPERTMESH
    with tempfile.TemporaryDirectory(prefix="expertmesh_cli_") as folder:
        make_folder(folder)
        EXPERTMESH = product.Program(sys.argv[1], folder)
        make_talker()
        suite = Suite()
        for name, *rest in MISTAKES:
            suite.add_named(name, test_mistake, *rest)
        for arguments in ([], ["--help"], ["-h"], ["help"]) + tuple([c, "--help"] for c in ("sft", "train", "score", "generate", "chat", "init", "list", "bench", "version")):
            suite.add_named("help_" + "_".join(arguments), test_help, arguments)
        for what, words in (("models", ["qwen3_moe", "qwen3_5_moe", "qwen3_5_moe_text"]), ("dispatchers", ["eager", "fused", "mc2", "domino"]), ("kernels", ["reference", "EXPERTS IN BF16", "amx"]), ("presets", ["qwen3-moe-tiny", "qwen3.5-moe-35b-a3b"]),
                            ("converters", ["alpaca", "sharegpt", "openai", "tokenized"])):
            suite.add_named("list_" + what, test_list, what, words)
        for test in (test_version, test_bench, test_init_and_alias, test_init_says_the_dtype, test_batching_strategies, test_small_set_repeats_with_a_warning,
                     test_attention_choices, test_score_writes_whole_output, test_generate_rows, test_generate_to_stdout,
                     test_generate_without_finite_scores, test_generate_text, test_chat, test_chat_answer_is_interrupted, test_interrupted_output_is_gone,
                     test_chat_on_a_terminal, test_chat_reads_a_config_file):
            suite.add(test)
        return suite.run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
