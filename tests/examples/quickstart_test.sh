#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The quick start with fewer steps, in a folder of its own: every command of it works as written, the loss on rows it never saw falls,
# and what it promises to leave behind is there.
#
#   quickstart_test.sh EXPERTMESH
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
ln -s "$source_dir/examples" examples
EXPERTMESH_TEST_PROGRAM=$1 "$source_dir/scripts/quickstart.sh" max_steps=15 logging_steps=5 | tee output.txt

for file in config.json config.resolved.yaml trainer_log.jsonl loss.svg tokenizer.json; do
  [ -s "outputs/quickstart/trained/$file" ] || { echo "no $file in the trained model"; exit 1; }
done
[ "$(wc -l <outputs/quickstart/trained/trainer_log.jsonl)" = 3 ] || { echo "not three lines of log"; exit 1; }
awk '/^mean loss of a token/ { before = $11; after = $13 }
     END { print "held-out loss", before + 0, "->", after + 0; exit !(before > 0 && after > 0 && after < before - 0.5) }' output.txt
