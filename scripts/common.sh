# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it: where things are, and how they talk.
# shellcheck shell=bash

# shellcheck disable=SC2034  # for the scripts that source this file
SOURCE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The same rule as cmake/libtorch.cmake.
CACHE_DIR=${EXPERTMESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/expertmesh}

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*"; }

die() {
  printf '%s: error: %s\n' "$(basename "$0" .sh)" "$*" >&2
  exit 1
}

# The comment block at the top of a script is its help text.
print_help() { awk 'NR > 2 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

# build PRESET [TARGET...]: configures where needed and builds. Ninja shows the progress.
build() {
  local preset=$1
  shift
  cd "$SOURCE_DIR" || exit
  # Also where the cache has moved since.
  if [ ! -f "build/$preset/build.ninja" ] || ! grep -qF "$CACHE_DIR/libtorch" "build/$preset/CMakeCache.txt"; then
    say "configuring build/$preset"
    cmake --preset "$preset" --fresh >/dev/null || die "cmake --preset $preset failed"
  fi
  say "building build/$preset (a few minutes the first time)"
  cmake --build "build/$preset" ${1:+--target "$@"}
}
