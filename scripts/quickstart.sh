#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on real data, from nothing: set-up, build, a small Qwen3-MoE with the real vocabulary, 100 steps on WordNet's
# definitions with 4 ranks (ep 2 x efsdp 2) in bf16, and the loss on rows it never saw, before and after.
#
#   scripts/quickstart.sh [key=value ...]     keys of the configuration, e.g. max_steps=300
#
# Everything it makes lies in outputs/quickstart. Minutes the first time, of which most is the build.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

OUT=outputs/quickstart
PRESET=qwen3-moe-quickstart

case ${1:-} in
  "" | *=*) ;;
  -h | --help) print_help && exit ;;
  *) die "unknown argument $1; see --help" ;;
esac

# A test runs a built program in a folder of its own.
if [ -n "${EXPERTMESH_TEST_PROGRAM:-}" ]; then
  EXPERTMESH=$EXPERTMESH_TEST_PROGRAM
else
  EXPERTMESH=$SOURCE_DIR/build/release/expertmesh
  "$SOURCE_DIR/scripts/setup.sh"
  build release expertmesh
  cd "$SOURCE_DIR"
fi

if [ ! -f "$OUT/data/heldout.jsonl" ]; then
  say "making training rows from WordNet"
  python3 "$SOURCE_DIR/scripts/make_wordnet_rows.py" --out "$OUT/data"
fi

say "making a model with random weights"
rm -rf "$OUT/model" "$OUT/trained"
"$EXPERTMESH" init --preset "$PRESET" --tokenizer "$CACHE_DIR/tokenizers/qwen3" --out "$OUT/model"

# score MODEL: the mean loss on the held-out rows.
score() {
  "$EXPERTMESH" score --model "$1" --input "$OUT/data/heldout.jsonl" --bf16 true --ranks 2 chat_markup=qwen3 \
    --output "$OUT/$(basename "$1").scores.jsonl"
}

say "scoring held-out rows before training"
before=$(score "$OUT/model")
printf '%s\n' "$before"
say "training"
"$EXPERTMESH" sft examples/quickstart/sft.yaml "$@" --ranks 4
say "scoring held-out rows after training"
after=$(score "$OUT/trained")
printf '%s\n' "$after"

# Of "rows 118  tokens 4772  mean nll 11.951223  perplexity 155006.5724".
nll() { sed -E 's/.*mean nll ([0-9.]+).*/\1/' <<<"$1"; }

printf '\nmean loss of a token in rows it never saw: %s before, %s after\n' "$(nll "$before")" "$(nll "$after")"
printf 'trained model  %s/trained\nloss curve     %s/trained/loss.svg\nlog            %s/trained/trainer_log.jsonl\n' \
  "$OUT" "$OUT" "$OUT"
