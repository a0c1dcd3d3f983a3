# SPDX-License-Identifier: Apache-2.0
"""The rule by which golden models get their weights, so that the repository need not store them.

Element i of tensor NAME is mean + scale * u, where u in [-1, 1) comes from 24 bits of a 64-bit mix of seed, NAME and i.
Every step is exact in double precision but the last rounding to float, so any language makes the same bits.
golden.cc beside this file is the same rule in C++.
"""
import json

import numpy as np

GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def mix64(x):
    """The finaliser of splitmix64, on an array of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits(name, seed, count):
    """64 pseudo-random bits for each of the elements 0..count-1."""
    start = np.uint64(fnv1a64(name) ^ ((seed * GOLDEN_RATIO) & MASK))
    return mix64(start + np.arange(count, dtype=np.uint64) * np.uint64(GOLDEN_RATIO))


def values(name, seed, shape, mean, scale):
    """The tensor as float32."""
    count = int(np.prod(shape))
    u = (bits(name, seed, count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    return (mean + scale * u).astype(np.float32).reshape(shape)


def mean_and_scale(name, family="qwen3_moe"):
    """Norms lie around what leaves values as they are (1, or 0 where weights are distances from 1), all else around
    zero, far enough off that a mistake shows in the loss. Decay rates are such that states live for some tokens."""
    if name.endswith("A_log"):
        return -0.5, 1.0
    if name.endswith("dt_bias"):
        return 0.25, 0.5
    if name.endswith("conv1d.weight"):
        return 0.0, 0.5
    if "norm" in name:
        return float(family == "qwen3_moe" or "linear_attn" in name), 0.171875
    return 0.0, 0.0625 if name.endswith("bias") else 0.103515625


def checksum(tensors):
    """Sum over all 32-bit words, in order, of word * (2 * index + 1), modulo 2^64."""
    words = np.concatenate([t.reshape(-1).view(np.uint32) for t in tensors]).astype(np.uint64)
    return int((words * (2 * np.arange(len(words), dtype=np.uint64) + 1)).sum(dtype=np.uint64))


def load(path):
    """All tensors that a weights.json describes: name -> float32 array."""
    with open(path) as file:
        plan = json.load(file)
    return {t["name"]: values(t["name"], plan["seed"], t["shape"], t["mean"], t["scale"]) for t in plan["tensors"]}
