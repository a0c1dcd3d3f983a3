#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example of Qwen3.5-MoE with the commands that its first lines give: it trains on 8 ranks, the loss falls, and what is
# saved can be scored.
#
#   qwen3_5_test.sh EXPERTMESH
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
ln -s "$source_dir/examples" examples
expertmesh() { "$program" "$@"; }
program=$1
eval "$(sed -n 's/^#   expertmesh/expertmesh/p' examples/qwen3_5_moe/sft.yaml)" | tee output.txt
grep -q 'edp 1 x efsdp 2 x ep 4' output.txt || { echo "another mesh than ep 4 x efsdp 2"; exit 1; }
grep -q 'gated delta rule in chunks of 32' output.txt || { echo "other kernels than were asked for"; exit 1; }
expertmesh score --model outputs/qwen3_5_moe/trained --input examples/qwen3_5_moe/rows.jsonl
python3 - <<'END'
import json
rows = [json.loads(line) for line in open("outputs/qwen3_5_moe/trained/trainer_log.jsonl")]
print("loss", rows[0]["loss"], "->", rows[-1]["loss"])
assert len(rows) == 4 and rows[-1]["loss"] < rows[0]["loss"] - 0.5
END
