# SPDX-License-Identifier: Apache-2.0
"""Reads safetensors files and trainer logs, without the product's own readers. Standard library only."""
import array
import json
import os
import struct


def read_header(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def model_files(directory):
    return sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))


def read_model(directory):
    """name -> (dtype, shape, bytes), over all files of a model directory."""
    tensors = {}
    for name in model_files(directory):
        path = os.path.join(directory, name)
        header, start = read_header(path)
        with open(path, "rb") as file:
            for tensor, info in header.items():
                begin, end = info["data_offsets"]
                file.seek(start + begin)
                tensors[tensor] = (info["dtype"], info["shape"], file.read(end - begin))
    return tensors


def floats(tensor):
    """The values of an F32 or BF16 tensor as read_model gives it."""
    dtype, _, data = tensor
    if dtype == "F32":
        return array.array("f", data)
    if dtype == "BF16":
        halves = array.array("H", data)
        words = array.array("I", (half << 16 for half in halves))
        return array.array("f", words.tobytes())
    raise ValueError("no reader for " + dtype)


def largest_difference(a, b):
    """Over all float tensors of two models with the same names and shapes; the tensor's name and the difference."""
    if {k: v[:2] for k, v in a.items()} != {k: v[:2] for k, v in b.items()}:
        raise ValueError("names, dtypes or shapes differ")
    worst = ("", 0.0)
    for name in a:
        difference = max((abs(x - y) for x, y in zip(floats(a[name]), floats(b[name]))), default=0.0)
        if not difference <= worst[1]:
            worst = (name, difference)
    return worst


def read_log(output_dir):
    """The records of trainer_log.jsonl."""
    with open(os.path.join(output_dir, "trainer_log.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def looks_complete(directory):
    """Whether a reader that knows nothing of an interrupted save would take the directory for a finished model: its
    config.json is there and every tensor file it would open is whole."""
    if not os.path.exists(os.path.join(directory, "config.json")):
        return False
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    else:
        names = {"model.safetensors"}
    return all(os.path.exists(os.path.join(directory, name)) for name in names)
