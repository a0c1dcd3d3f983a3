#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/validation in short: every dispatcher beside eager on 4 ranks, a table with a row for each, runs that are read
# instead of repeated, and an end with 1 where they agree less than is asked.
#
#   validation_test.sh EXPERTMESH
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
validate() {
  "$source_dir/examples/validation/validate.py" endure --expertmesh "$1" --out out --steps 10 --ranks 4 --dispatchers fused,mc2,domino \
    --rules rotating:2 micro_batch_size=2 dist_config.ep_size=2 "${@:2}"
}
validate "$1" | tee output.txt
for name in eager fused mc2 domino; do
  [ "$(grep -c "^| $name |" output.txt)" = 1 ] || { echo "no row of $name"; exit 1; }
done
awk -F'|' '/^\| eager/ { split($7, loss, "->"); exit !(loss[1] > loss[2] + 1) }' output.txt || { echo "the loss does not fall"; exit 1; }
validate "$1" >again.txt
[ "$(grep '^|' output.txt)" = "$(grep '^|' again.txt)" ] || { echo "another table from the same runs"; exit 1; }
if grep -q ' of CPU time' again.txt; then echo "a run was repeated"; exit 1; fi
if validate "$1" --least-correlation 1.1 >refused.txt 2>&1; then echo "too low a correlation was accepted"; exit 1; fi
grep -q 'is below 1.1' refused.txt
