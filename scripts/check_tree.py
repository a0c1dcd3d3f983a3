#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a compiler does not: who may include whom, heavy headers, licence lines, plain ASCII, paths in documents.

    scripts/check_tree.py [ROOT]

Rooms and what they may include come from the expertmesh_room() lines of CMakeLists.txt, so there is one list to keep. Prints
one line a fault, FILE:LINE: what to do, and exits with 1 where there is any.
"""
import glob
import os
import re
import sys

SKIPPED_FOLDERS = {".git", "build", "outputs", "__pycache__"}
SOURCES = (".h", ".cc", ".inc", ".cu", ".py", ".sh", ".cmake")
# What cannot hold a comment, and data that tests read byte for byte.
DATA = (".json", ".jsonl", ".safetensors", ".txt", ".tiktoken", ".csv", ".bin", ".svg", ".png", ".jinja", ".expected")
NOWHERE = re.compile(r"(torch/torch|torch/all|torch/extension|ATen/ATen)\.h")
NOT_IN_HEADERS = re.compile(r"torch/csrc/autograd/(custom_function|autograd|variable)\.h|torch/csrc/distributed/|.*c10d/|"
                            r"nlohmann/json\.hpp|yaml-cpp/|CLI/|gloo/|pcre2\.h|utf8proc\.h")
TORCH = re.compile(r"(ATen|c10|torch|caffe2)/")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PATH = re.compile(r"(?<![\w/.-])(?:src|scripts|tests|docs|bench|examples|cmake)/[\w./-]*\w")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)')


def read_rooms(root):
    """room path -> (rooms it may include, whether torch is allowed), from the build's own lines."""
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as file:
        text = file.read()
    rooms = {}
    for call in re.findall(r"expertmesh_room\(([^)]*)\)", text):
        words = call.split()
        deps = [word for word in words if word.startswith("expertmesh_")]
        names = [dep[len("expertmesh_"):] for dep in deps]
        allowed = {words[0]}
        for path in list(rooms):
            if path.replace("/", "_") in names:
                allowed |= rooms[path][0]
        rooms[words[0]] = (allowed, "TORCH" in words)
    return rooms


def room_of(path, rooms):
    """The longest room whose folder holds the path (relative to src/)."""
    fitting = [room for room in rooms if path.startswith(room + "/")]
    return max(fitting, key=len) if fitting else None


def check_includes(path, lines, rooms):
    is_header = path.endswith(".h")
    room = room_of(path[len("src/"):], rooms) if path.startswith("src/") else None
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        is_quoted, target = match[1] == '"', match[2]
        if NOWHERE.match(target):
            yield number, "%s costs 20 s a file: include ATen/core/Tensor.h and ATen/ops/NAME.h" % target
        elif is_header and not is_quoted and NOT_IN_HEADERS.match(target) and not path.startswith("src/comm/c10d/"):
            yield number, "%s is heavy: include it in .cc files only" % target
        if room is None:
            continue
        allowed, has_torch = rooms[room]
        if not is_quoted and TORCH.match(target) and not has_torch:
            yield number, "room %s is free of torch, so %s does not belong here" % (room, target)
        other = room_of(target, rooms) if is_quoted else None
        if other and other not in allowed:
            yield number, "room %s may include from %s, not from %s" % (room, ", ".join(sorted(allowed)), other)
        if is_quoted and not other and not target.endswith(".inc") and not is_in_tests(target):
            yield number, "spell the include from src/ on: \"%s\" is in no room" % target


def is_in_tests(target):
    return target.startswith(("golden", "dist/"))


def check_text(path, text):
    lines = text.splitlines()
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
        yield 1, "no line with SPDX-License-Identifier: Apache-2.0 at the top"
    if not path.endswith(SOURCES) and os.path.basename(path) != "CMakeLists.txt":
        return
    for number, line in enumerate(lines, 1):
        if not line.isascii() and not path.startswith("tests/cases/"):
            yield number, "not plain ASCII; write an escape"
        if UNFINISHED.search(line) and os.path.basename(path) != "check_tree.py":
            yield number, "unfinished work is an issue, not a comment"
    if path.endswith(".h") and "#pragma once" not in text:
        yield 1, "no #pragma once"


def check_document(root, path, text):
    """Files that a document names exist (`src/data/bpe*` too); `foo` stands for a name to be chosen."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in PATH.findall(line):
            if "foo" not in name and not glob.glob(os.path.join(root, glob.escape(name) + "*")):
                yield number, "there is no %s" % name


def find_files(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(files):
            yield os.path.relpath(os.path.join(folder, name), root)


def check_tree(root):
    rooms = read_rooms(root)
    for path in find_files(root):
        is_case = path.startswith(("tests/cases/", "tests/golden/tokenizer"))
        if path.endswith(DATA) and os.path.basename(path) != "CMakeLists.txt" or is_case and not path.endswith(SOURCES):
            continue
        if path in ("LICENSE", ".gitignore", ".clang-format", ".clang-tidy", "CMakePresets.json"):
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        for number, fault in check_text(path, text):
            yield "%s:%d: %s" % (path, number, fault)
        if path.endswith(".md") and not path.startswith("tests/cases/"):
            for number, fault in check_document(root, path, text):
                yield "%s:%d: %s" % (path, number, fault)
        if path.endswith((".h", ".cc", ".inc", ".cu")):
            for number, fault in check_includes(path, text.splitlines(), rooms):
                yield "%s:%d: %s" % (path, number, fault)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    faults = list(check_tree(root))
    for fault in faults:
        print(fault)
    print("check_tree: %d faults" % len(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
