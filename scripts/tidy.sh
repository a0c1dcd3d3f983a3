#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy over the C++ sources with the compile commands of build/release.
#
#   scripts/tidy.sh [FILE...]      e.g. scripts/tidy.sh src/comm/*.cc; without files, all of them
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

case ${1:-} in
  -h | --help) print_help && exit ;;
esac
tidy=$(command -v clang-tidy-19) || die "no clang-tidy-19; run scripts/setup.sh --dev"
cd "$SOURCE_DIR"
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
if [ $# -eq 0 ]; then
  mapfile -t files < <(git ls-files -- 'src/*.cc' 'tests/*.cc' 'bench/*.cc')
  set -- "${files[@]}"
fi
# -fno-openmp: clang does not read gcc's omp.h.
printf '%s\0' "$@" | xargs -0 -n 4 -P "$(nproc)" "$tidy" -p build/release --quiet --extra-arg=-fno-openmp
