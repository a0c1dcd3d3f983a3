#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats the C++ sources, or with --check lists those that are not formatted and fails.
#
#   scripts/format.sh [--check]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

action=-i
case ${1:-} in
  "") ;;
  --check) action="--dry-run -Werror" ;;
  -h | --help) print_help && exit ;;
  *) die "unknown argument $1; see --help" ;;
esac
formatter=$(command -v clang-format-19) || die "no clang-format-19; run scripts/setup.sh --dev"
cd "$SOURCE_DIR"
# shellcheck disable=SC2086  # the action may be two words
git ls-files -z -co --exclude-standard -- 'src/*.h' 'src/*.cc' 'tests/*.h' 'tests/*.cc' 'bench/*.h' 'bench/*.cc' 'tools/*.cc' |
  xargs -0 "$formatter" $action
